#!/usr/bin/env python3
"""page_bytes_test.py: a copy of the tree in another folder, compiled anew, gives the page of this tree byte by byte; and a build that
cannot be right ends with a sentence: a source link whose text is gone, a module form that the bundler does not know."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import browser

ROOT = browser.ROOT
NEEDED = ("comm", "explain", "include", "kernels", "scripts", "transport", "trainer")


def check(holds, what):
    if not holds:
        sys.exit(what)


def bundle(copy, name, **environment):
    """Makes build/NAME of the copy."""
    return subprocess.run([copy / "explain/bundle.py", copy / "build/page/rondo.wasm", copy / "build" / name], capture_output=True,
                          text=True, check=False, env={**os.environ, **environment})


def refuses(copy, old, new, sentence):
    """A bundle of the copy in which a chapter has the new text."""
    chapter = copy / "explain/page/chapters/ring.js"
    kept = chapter.read_text()
    chapter.write_text(kept.replace(old, new))
    done = bundle(copy, "bad.html")
    chapter.write_text(kept)
    check(done.returncode != 0 and sentence in done.stderr, f"'{sentence}' is not said:\n{done.stderr}")
    check(not (copy / "build/bad.html").exists(), "a bad page was written")


def main():
    page = browser.built_page()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "another place"
        for name in NEEDED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        # Compiled anew: what the compiler keeps of a tree lies in its build folder. Shared is only its C++ library.
        subprocess.run([copy / "scripts/page"], check=True)
        check((copy / "build/explain.html").read_bytes() == page.read_bytes(), "the same sources gave another page in another folder")
        text = page.read_text()
        for trace in (str(ROOT), str(pathlib.Path.home()) + "/", "/tmp/"):
            check(trace not in text, f"the page has a path of this machine: {trace}")
        refuses(copy, '"kRing{"', '"kRingThatIsGone{"', "no line of comm/algorithms/ring.cpp has the text 'kRingThatIsGone{' any more")
        refuses(copy, "export const chapter", "export default", "is not a form that explain/bundle.py knows")
        refuses(copy, 'from "../lib/dom.js"', 'from "../lib/gone.js"', "there is no module page/lib/gone.js")
        done = bundle(copy, "web.html", RONDO_SOURCES="https://host.example/rondo/blob/main/")
        check(done.returncode == 0, done.stderr)
        web = (copy / "build/web.html").read_text()
        check('TREE = "https://host.example/rondo/blob/main/"' in web and "to the sources on the web" in web, "the links do not lead to RONDO_SOURCES")
        for bad in ("host.example/", "https://host.example/rondo", 'https://host.example/"/'):
            check("RONDO_SOURCES is" in bundle(copy, "web.html", RONDO_SOURCES=bad).stderr, f"'{bad}' is taken as the address of a tree")
    print(f"{page.stat().st_size} bytes, the same in another folder")


if __name__ == "__main__":
    main()
