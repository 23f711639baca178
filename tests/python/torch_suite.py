#!/usr/bin/env python3
"""PyTorch's own tests of a c10d backend, DistributedTest in torch/testing/_internal/distributed/distributed_test.py, on any backend.

    torch_suite.py --backend gloo --json gloo.json            every case that PyTorch runs on Gloo
    torch_suite.py --backend rondo --like gloo --json FILE    the same cases on rondo
    torch_suite.py --backend rondo --like mpi test_all_to_all_single_equal_split ...
    torch_suite.py --backend rondo --list tests/python/torch_suite.txt

A case is --ranks processes, as PyTorch's test/distributed/test_distributed_spawn.py starts them, but forked from one that has imported
PyTorch: importing takes longer than most cases. The suite decides by a backend's name which cases it has; --like gives it another name
to decide by. A case passed, was skipped (with the reason), or failed (with the last line of the error; --logs keeps the rest); one that
takes longer than --timeout seconds failed. Cases that are named, or in the file of --list (a line `LIKE CASE` each), must pass.
Exit code: 0 if no case failed, 77 if this Python has no PyTorch of 2.15 or newer.
"""
import argparse
import collections
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

import torch_python

MODULE = "torch.testing._internal.distributed.distributed_test"
Result = collections.namedtuple("Result", "state reason seconds")


class TwoNames(str):
    """A backend's name that also equals another backend's: some cases ask for it when they run."""

    def __new__(cls, name, like):
        self = super().__new__(cls, name)
        self.like = like
        return self

    def __eq__(self, other):
        return str(self) == other or self.like == other

    __hash__ = str.__hash__


def suite(backend, like):
    """The suite's cases on `backend`: those that it has for the backend `like`."""
    import importlib

    import torch.multiprocessing
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "gpu", "plugin", "subgroup"):  # what the suite asks of a backend that is not PyTorch's
        DistTestCases.backend_feature[feature].add(backend)
    os.environ["BACKEND"] = like  # read on import
    module = importlib.import_module(MODULE)
    os.environ["BACKEND"] = backend
    module.BACKEND = TwoNames(backend, like)
    module.Barrier.sync.__func__.__defaults__ = (None, 60)  # the suite's own, of files: 10 s are few on a machine with other work

    class Cases(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Cases


def names_of_cases():
    """All of them, whatever the backend. Each process of a case imports the suite anew, for its own --like."""
    names = unittest.TestLoader().getTestCaseNames(suite("gloo", "gloo"))
    del sys.modules[MODULE]
    return names


def last_line(text):
    """The message of the last exception in a text."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (lines or text.strip().splitlines() or ["no output"])[-1]


def reason_of(failure, log):
    """Of a rank that ended without telling the suite why, the log has the reason."""
    if "exit code" in failure and "exited with error code" not in failure and re.search(r"^[\w.]*(Error|Exception)\b", log, re.MULTILINE):
        return last_line(log)
    return last_line(failure)


def run_case(backend, like, name, stem):
    """In a process of its own, and the leader of a group: writes stem.log and stem.json."""
    os.setsid()
    log = os.open(f"{stem}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, force=True)  # the ranks log why they skip
    done = unittest.TestResult()
    unittest.TestSuite([suite(backend, like)(name)]).run(done)
    failures = [text for _, text in done.failures + done.errors] + ["passed, which was not expected"] * len(done.unexpectedSuccesses)
    text = pathlib.Path(f"{stem}.log").read_text(errors="replace")
    if failures:
        print("\n".join(failures), flush=True)
        result = ("failed", reason_of(failures[-1], text))
    elif done.skipped:
        of_ranks = re.findall(r"for following reason: (.*)", text)
        result = ("skipped", (of_ranks or [done.skipped[0][1]])[0])
    else:
        result = ("passed", "")
    pathlib.Path(f"{stem}.json").write_text(json.dumps(result))


def result_of(process, stem, timeout, seconds):
    """Ends what is left of a case, and returns its Result."""
    ended = multiprocessing.connection.wait([process.sentinel], 0)
    try:
        os.killpg(process.pid, signal.SIGKILL)  # ranks that it left, too; its number is its own until it is joined
    except ProcessLookupError:
        process.kill()  # it has no group yet
    process.join()
    written = pathlib.Path(f"{stem}.json")
    if not ended:
        return Result("failed", f"took longer than {timeout:g} s", round(seconds, 1))
    if not written.exists():
        return Result("failed", f"its process ended with {process.exitcode}", round(seconds, 1))
    return Result(*json.loads(written.read_text()), round(seconds, 1))


def run_cases(cases, options, folder):
    """{(like, name): Result}; `options.jobs` cases at a time."""
    results, running, waiting = {}, {}, collections.deque(cases)
    while waiting or running:
        while waiting and len(running) < options.jobs:
            like, name = waiting.popleft()
            stem = os.path.join(folder, f"{like}-{name}")
            process = multiprocessing.get_context("fork").Process(target=run_case, args=(options.backend, like, name, stem))
            process.start()
            running[process.sentinel] = (like, name), process, stem, time.monotonic()
        oldest = min(started for *_, started in running.values())
        multiprocessing.connection.wait(running, max(0, oldest + options.timeout - time.monotonic()))
        for sentinel, (case, process, stem, started) in list(running.items()):
            seconds = time.monotonic() - started
            if seconds < options.timeout and not multiprocessing.connection.wait([sentinel], 0):
                continue
            del running[sentinel]
            results[case] = result_of(process, stem, options.timeout, seconds)
            if results[case].state == "failed":
                print(f"{case[1]} failed: {results[case].reason}", flush=True)
    return results


def cases_of(options, parser):
    """[(like, name)], and whether a skipped one is a failure."""
    if options.list:
        cases = [tuple(line.split()) for line in options.list.read_text().splitlines() if line and not line.startswith("#")]
    else:
        cases = [(options.like, name) for name in options.case]
    known = names_of_cases()
    for _, name in cases:
        if name not in known:
            parser.error(f"PyTorch's suite has no case '{name}'")
    return cases or [(options.like, name) for name in known], bool(cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="rondo")
    parser.add_argument("--like", help="the backend by whose name the suite chooses its cases; default: --backend")
    parser.add_argument("--ranks", type=int, default=3, help="default: 3, as PyTorch has it without GPUs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time; default: the CPUs")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for a case; default: 120")
    parser.add_argument("--list", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--logs", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("case", nargs="*")
    options = parser.parse_args()
    options.like = options.like or options.backend
    os.environ.update(WORLD_SIZE=str(options.ranks), OMP_NUM_THREADS="1")
    if not torch_python.has_torch():
        return 77
    import torch
    import torch._dynamo  # noqa: F401  # which the suite imports late

    with tempfile.TemporaryDirectory(prefix="torch_suite.") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder  # the suite leaves files
        os.environ["INIT_METHOD"] = f"file://{folder}/init"  # by the network some cases are skipped
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
        cases, must_pass = cases_of(options, parser)
        results = run_cases(cases, options, options.logs or folder)
    if options.json:
        document = {"backend": options.backend, "ranks": options.ranks, "torch": torch.__version__,
                    "cases": [{"like": like, "case": name, **results[like, name]._asdict()} for like, name in cases]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    count = collections.Counter(result.state for result in results.values())
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    if must_pass and count["skipped"]:
        print("\n".join(f"{name} was to pass, but was skipped: {result.reason}"
                        for (_, name), result in results.items() if result.state == "skipped"))
    return int(count["failed"] > 0 or (must_pass and count["skipped"] > 0))


if __name__ == "__main__":
    sys.exit(main())
