"""A headless Chromium for tests of the page: Debian's chromium and its driver, by selenium. Skips the test (77) with a reason where one
is missing."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

# Debian's python3-selenium belongs to the system's Python.
SYSTEM = "/usr/bin/python3"
if importlib.util.find_spec("selenium") is None and os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
    os.execv(SYSTEM, [SYSTEM, *sys.argv])

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def built_page():
    """build/explain.html, made anew; skips where pip cannot get the compiler."""
    done = subprocess.run([ROOT / "scripts/python-env", "page"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        skip(f"the compiler for WebAssembly cannot be had: {done.stdout.strip().splitlines()[-1:]}")
    subprocess.run([ROOT / "scripts/page"], check=True)
    return ROOT / "build/explain.html"


class Browser:
    """One tab. All sizes are CSS pixels."""

    def __init__(self):
        if importlib.util.find_spec("selenium") is None:
            skip("python3-selenium is missing: scripts/setup page installs it")
        if not (shutil.which("chromium") and shutil.which("chromedriver")):
            skip("chromium or chromium-driver is missing: scripts/setup page installs them")
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
        options = Options()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
                         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = self.started(lambda: webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))))
        self.driver.set_script_timeout(300)
        self.requests, self.complaints = [], []

    @staticmethod
    def started(start, tries=5):
        """chromedriver gives its browser one minute to begin, which a busy machine may need."""
        from selenium.common.exceptions import SessionNotCreatedException
        for left in reversed(range(tries)):
            try:
                return start()
            except SessionNotCreatedException as error:
                if left == 0 or "DevToolsActivePort" not in str(error):
                    raise
                print(f"the browser has not begun within a minute: once more ({error.msg})")

    def cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def later(self, script, *arguments):
        """The value of an async function's body."""
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);"
            f"(async (...arguments) => {{{script}}})(...given).then((v) => done({{v}}), (e) => done({{e: String(e)}}));", *arguments)
        if "e" in found:
            raise AssertionError(found["e"])
        return found.get("v")

    def wait(self, script, what, seconds=60):
        from selenium.webdriver.support.ui import WebDriverWait
        WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda d: d.execute_script(f"return {script}"), what)

    def size(self, width, height, scheme="light", motion="reduce"):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                         {"name": "prefers-reduced-motion", "value": motion}])

    def open(self, page, fragment=""):
        self.driver.get("about:blank")
        self.driver.get(f"file://{page}{fragment}")
        self.wait("document.documentElement.dataset.shown", "the page shows no chapter")

    def go(self, fragment):
        """Another fragment in the open page."""
        self.js("location.hash = arguments[0]", fragment)
        self.settle()

    def settle(self):
        self.later("await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def collect(self):
        """Requests to hosts, and what the browser complained of, since the last call."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    self.requests.append(url)
        self.complaints += [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def shot(self, name):
        folder = ROOT / "build/page-shots"
        folder.mkdir(parents=True, exist_ok=True)
        size = self.js("return [innerWidth, document.documentElement.scrollHeight]")
        self.cdp("Emulation.setDeviceMetricsOverride", width=size[0], height=min(size[1], 8000), deviceScaleFactor=1, mobile=False)
        self.settle()
        self.driver.save_screenshot(str(folder / f"{name}.png"))

    def quit(self):
        self.driver.quit()
