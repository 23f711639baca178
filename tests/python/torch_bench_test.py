#!/usr/bin/env python3
"""torch_bench_test.py PACKAGE: bench/peers/torch_backends.py measures every row, and refuses wrong results. Times are not judged."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch_python

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "bench/peers/torch_backends.py"


class Bench(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            out, report = pathlib.Path(folder, "out.json"), pathlib.Path(folder, "report.md")
            done = subprocess.run([sys.executable, str(PROGRAM), "--quick", "--json", str(out), "--report", str(report)],
                                  env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=400, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            result, page = json.loads(out.read_text()), report.read_text()
        self.assertEqual(len(result["collectives"]), 5)
        for sizes in result["collectives"].values():
            self.assertEqual(list(sizes), ["8", "4096", "1048576"])
            for rounds in sizes.values():
                self.assertEqual({name: len(each) for name, each in rounds.items()}, {"rondo plain": 2, "rondo library": 2, "gloo": 2})
                self.assertGreater(min(us for each in rounds.values() for us in each), 0)
        self.assertEqual(len(result["steps"]), 4)
        for rounds in result["steps"].values():
            self.assertEqual({name: len(each) for name, each in rounds.items()}, {"rondo": 2, "gloo": 2})
        self.assertEqual(page.count("| size | rondo plain | rondo library | gloo |"), 5)
        self.assertEqual(page.count("| step | rondo | gloo |"), 1)

    def test_a_wrong_result_ends_it(self):
        sys.path.insert(0, str(PROGRAM.parent))
        import torch.distributed as dist
        import torch_backends

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        contender = torch_backends.Contender("gloo", 0, dist.group.WORLD, "plain")
        for name, (_, larger) in torch_backends.COLLECTIVES.items():
            torch_backends.operation_of(contender, name, 64, 0, 1)
            torch_backends.COLLECTIVES[name] = (lambda x, y, group: (x.add_(1), y.zero_()), larger)
            with self.assertRaisesRegex(SystemExit, f"gloo: a wrong result of {name} of 64 bytes"):
                torch_backends.operation_of(contender, name, 64, 0, 1)
        dist.destroy_process_group()

    def test_ratios_are_of_rounds(self):
        sys.path.insert(0, str(PROGRAM.parent))
        import torch_backends

        rounds = {"rondo plain": [1.0, 10.0, 2.0], "rondo library": [1.0, 1.0, 1.0], "gloo": [2.0, 30.0, 8.0]}
        self.assertEqual(torch_backends.rows_of({"8": rounds}, ["rondo plain", "rondo library"]),
                         [["8", "2.00", "1.00", "8.00 (3.00 / 8.00)"]])


if __name__ == "__main__":
    if not torch_python.has_torch():
        sys.exit(77)
    PACKAGE = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=2)
