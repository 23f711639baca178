"""Where a measurement comes from: the commit and the machine, for the reports that scripts write."""
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _git(*words):
    try:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit():
    revision = _git("rev-parse", "HEAD")
    if not revision:
        return "unknown: no git here"
    return revision + (" with changes" if _git("status", "--porcelain") else "")


def _first(path, pattern):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def machine():
    """Processor, CPUs that this process may use, memory and system; no host name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    processor = _first("/proc/cpuinfo", r"^model name\s*:(.*)$") or platform.machine()
    system = _first("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)') or platform.system()
    return f"{processor}, {len(os.sched_getaffinity(0))} CPUs, {memory:.0f} GiB, {system}, {platform.system()} {platform.release().split('-')[0]}"
