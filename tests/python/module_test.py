#!/usr/bin/env python3
"""module_test.py BIN PACKAGE OTHER_VERSION: the Python module of the folder PACKAGE, under BIN/rondo-run and alone. ranks.py is what a
rank does. OTHER_VERSION is a library with another rondo_version()."""
import ast
import contextlib
import functools
import operator
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock
import weakref

CALL = operator.methodcaller("__call__")
HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **more):
    environment = {**os.environ, **more, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=120, check=False)


@contextlib.contextmanager
def in_threads(*calls):
    """Each (function, argument...) in a thread, all of which have ended when the body has."""
    threads = [threading.Thread(target=function, args=arguments) for function, *arguments in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)


class UnderALauncher(unittest.TestCase):
    def ranks(self, ranks, *cases):
        done = run(f"{BIN}/rondo-run", "-n", ranks, "--timeout", 100, "--", sys.executable, HERE / "ranks.py", *cases)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.count(": ok")

    def test_collectives_messages_and_state(self):
        cases = ("equal_blocks", "roots", "varying_blocks", "kinds_of_memory", "messages", "objects", "asynchronous", "finishes", "places",
                 "state")
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(self.ranks(ranks, *cases), ranks * len(cases))

    def test_the_page_has_a_program_that_prints_what_the_page_says(self):
        page = (HERE.parents[1] / "docs/python.md").read_text(encoding="utf-8")
        program = page.split("```python\n")[1].split("```")[0]
        done = run(f"{BIN}/rondo-run", "-n", 3, "--timeout", 100, "--", sys.executable, "-c", program)
        self.assertEqual(done.stdout.count("[6. 6. 6. 6.]"), 3, done.stdout + done.stderr)
        self.assertIn("prints `[6. 6. 6. 6.]` three times", page)

    def test_errors_say_what_happened(self):
        cases = ("disagree", "another_collective", "only_sends", "interrupted", "signalled", "closes_in_vain", "closed_too_early",
                 "forked")
        self.assertEqual(self.ranks(2, *cases), 2 * len(cases) + 2)  # each rank's child ends as a rank does
        for ranks in (2, 3):
            self.assertEqual(self.ranks(ranks, "dies"), ranks - 1)


class Alone(unittest.TestCase):
    """What needs no other process: wrong arguments, ways to meet, a system without numpy."""

    @classmethod
    def setUpClass(cls):
        cls.c = rondo.Communicator(0, 1)

    def refused(self, part, call, *arguments, error=(TypeError, ValueError), **options):
        with self.assertRaises(error) as raised:
            call(*arguments, **options)
        self.assertIn(part, str(raised.exception))

    def test_wrong_arguments_are_named(self):
        c, x = self.c, np.ones(6, "float32")
        self.refused("band", c.plan, "all_reduce", 8, op="band", error=rondo.Error)
        self.refused("x is not contiguous", c.all_reduce, np.ones((4, 4))[:, ::2])
        self.refused("x is not contiguous in C order", c.all_reduce, np.asfortranarray(np.ones((2, 3))))
        self.refused("x is not contiguous", c.all_reduce, x[::-1])
        self.refused("complex128", c.all_reduce, np.ones(3, complex))
        self.refused("elements of object", c.all_reduce, np.array([1, None]))
        self.refused("elements of >i, in another byte order", c.all_reduce, np.ones(3, ">i4"))
        self.refused("datetime64", c.all_reduce, np.zeros(3, "datetime64[s]"))
        self.refused("elements of [('a', '<i4')]", c.all_reduce, np.zeros(3, [("a", "i4")]))
        self.refused("x is a list", c.all_reduce, [1, 2])
        masked = np.ma.masked_array(x, x > 0)
        for call, arguments in ((c.all_reduce, (masked,)), (c.broadcast, (masked,)), (c.send, (masked, 0)), (c.all_gather, (type("Of", (np.ma.MaskedArray,), {})(x),))):
            self.refused("x is a masked array, whose mask would be lost: pass x.filled(value)", call, *arguments)
        self.refused("y is a masked array", c.all_reduce, x, masked)
        self.assertEqual(c.all_reduce(x.view(type("Of", (np.ndarray,), {}))).tolist(), [1] * 6)
        self.refused("invalid layout 0x1234", c.all_reduce, x, layout=0x1234, error=rondo.Error)
        self.refused("invalid layout 0x1442", c.all_reduce, x, layout=0x1442, error=rondo.Error)
        self.assertEqual(c.all_reduce(x, layout=0x1342).tolist(), [1] * 6)
        only = type("OnlyDlpack", (), {"__dlpack__": lambda _, **more: x.__dlpack__(**more), "__dlpack_device__": lambda _: x.__dlpack_device__()})()
        self.refused("an array like a OnlyDlpack is rondo cannot tell: pass y", c.all_reduce, only)
        self.assertEqual(list(c.all_reduce(only, np.zeros_like(x))), list(x))
        self.refused("y is read-only", c.all_reduce, b"abc", b"abc")
        self.refused("y has 4 elements, it needs 6", c.all_reduce, x, np.empty(4, "float32"))
        self.refused("x holds float, y double", c.all_reduce, x, np.empty(6))
        self.refused('no operator "median"', c.all_reduce, x, op="median")
        self.refused('no algorithm "magic"', c.all_reduce, x, algorithm="magic")
        self.refused('"stall_timeout" is of a wrong type', c.all_reduce, x, stall_timeout="5")
        self.refused('no argument "asynch"', c.all_reduce, x, asynch=True)
        self.refused("in seconds", c.all_reduce, x, stall_timeout=-1)
        self.refused("in seconds", rondo.Communicator, 0, 1, stall_timeout=float("nan"))
        self.refused("root 1 is not a rank of 1", c.broadcast, x, root=1)
        self.refused("y is a int", c.broadcast, x, 1)
        self.refused("y has 4 elements, it needs 6", c.broadcast, x, np.empty(4, "float32"))
        self.refused("root 1 is not a rank of 1", c.broadcast_object, x, 1)
        self.refused("counts has 2 entries, it needs one for each of 1 ranks", c.all_gather_v, x, x.copy(), [1, 2])
        self.refused("counts[0] is -6", c.all_gather_v, x, x.copy(), [-6])
        self.refused("offsets[0] is -1", c.scatter_v, x, x.copy(), [6], [-1])
        self.refused("y_counts[0] is -2", c.all_to_all_v, x, [6], x.copy(), [-2])
        self.refused("its blocks need 9223372036854775807", c.all_gather_v, x, x.copy(), [6], [2**63 - 7])
        self.refused("negative length", rondo.empty, -1)
        self.refused("negative length", rondo.empty, (2, -3))
        self.refused("float", rondo.empty, (2, 2.5))
        self.refused("elements of object", rondo.empty, 3, object)
        self.refused(f"no {2**64} bytes of library memory", rondo.empty, 2**62, error=MemoryError)
        self.refused("its blocks need 9", c.all_gather_v, x, x.copy(), [6], [3])
        self.refused("rank 7", c.send, x, 7, error=rondo.Error)
        self.refused("bavg", c.plan, "all_reduce", 1, op="bavg")

    def test_an_output_that_cannot_be_written_is_refused_before_anything_moves(self):
        c, x, read_only = self.c, np.ones(6, "float32"), np.zeros(6, "float32")
        read_only.setflags(write=False)
        self.refused("y is read-only", c.all_reduce, x, read_only)
        self.refused("y is read-only", c.all_reduce, x[:1], np.float32(0))  # numpy's scalars are
        self.refused("y is read-only", c.recv, read_only, 0)
        self.assertEqual(c.all_reduce(read_only).tolist(), [0] * 6)  # an input may be
        self.refused("overlap without being in place", c.all_reduce, x[:5], x[1:], error=rondo.Error)
        self.refused("overlap without being in place", c.all_gather, x[:5], x[1:], error=rondo.Error)
        self.assertEqual(x.tolist(), [1] * 6)

    def test_arrays_without_dimensions_or_elements(self):
        c, y = self.c, np.array(0.0)
        self.assertEqual(c.all_reduce(np.array(2.5)).shape, ())
        self.assertIs(c.all_reduce(np.float64(2.5), y), y)
        self.assertEqual(y, 2.5)
        self.assertEqual(c.all_gather(y).tolist(), [2.5])
        self.assertEqual(c.broadcast(np.zeros((0, 3))).shape, (0, 3))
        self.assertEqual(c.reduce_scatter(np.zeros((4, 0))).shape, (4, 0))
        self.assertEqual(c.all_reduce(bytearray()), b"")
        self.assertEqual(rondo.empty(()).shape, ())

    def test_arrays_live_as_long_as_an_operation_uses_them(self):
        c, y, text = self.c, np.zeros(3, "int32"), bytearray(12)
        seen = weakref.ref(y)
        work = [c.recv(y, 0, 1, async_op=True), c.recv(text, 0, 2, async_op=True)]
        del y
        self.assertIsNotNone(seen())
        with self.assertRaises(BufferError):
            text.append(0)
        c.send(np.arange(3, dtype="int32"), 0, 1)
        c.send(b"twelve bytes", 0, 2)
        self.assertEqual(work.pop(0).wait().tolist(), [0, 1, 2])
        self.assertIsNone(seen())  # the operation has ended, and nobody has its Work
        self.assertEqual(work[0].wait(), b"twelve bytes")
        text.append(0)  # nor is this one used, though its Work is there

    def test_finalizers_of_kept_arrays_may_use_the_communicator(self):
        program = """
import time, weakref, numpy as np, rondo
c, finalized = rondo.Communicator(0, 1), []
def finalize(i):
    finalized.append(i)
    for _ in range(40):
        c.recv(np.zeros(4), 0, 9, async_op=True)  # nobody keeps its Work
def array(i):
    y = np.zeros(4)
    weakref.finalize(y, finalize, i)
    return y
with c.group():
    for i in range(8):
        c.send(array(i), 0)
        c.recv(array(i), 0)
print(sorted(finalized) == sorted([*range(8)] * 2))
finalized.clear()
for i in range(32):
    c.recv(array(i), 0, 1, async_op=True)
for i in range(32):
    c.send(np.ones(4), 0, 1)
while len(finalized) < 32:  # a dropped Work makes room for the next
    c.recv(np.zeros(4), 0, 9, async_op=True)
    time.sleep(0.001)
print(sorted(finalized) == [*range(32)])
c.abort("done")
"""
        done = run(sys.executable, "-c", program)
        self.assertEqual((done.returncode, done.stdout), (0, "True\nTrue\n"), done.stderr)

    def test_a_daemon_thread_in_a_call_when_the_interpreter_ends(self):
        program = """
import threading, time, rondo
class Slow:
    def __del__(self):
        time.sleep(1)
identity, pair = rondo.make_unique_id(), [None, None]
def create(rank):
    pair[rank] = rondo.Communicator(rank, 2, unique_id=identity)
def receive():
    pair[0].recv(bytearray(1), 1, stall_timeout=0.5)
threads = [threading.Thread(target=create, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
rondo.slow = Slow()  # the thread comes back from its call while this is finalized
threading.Thread(target=receive, daemon=True).start()
while "recv" not in pair[0].flight_record(): time.sleep(0.001)
"""
        done = run(sys.executable, "-c", program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_library_of_another_version_is_refused(self):
        done = run(sys.executable, "-c", "import rondo", LD_PRELOAD=OTHER_VERSION)
        self.assertRegex(done.stderr, rf"ImportError: this module is of rondo {rondo.__version__}, but the library of rondo 98\.7\.6 "
                         rf"was loaded, from .*{os.path.basename(OTHER_VERSION)}: see LD_LIBRARY_PATH")

    def test_the_first_calls_of_two_threads(self):
        program = """
import threading, numpy, rondo
start, communicators = threading.Barrier(2), [rondo.Communicator(0, 1) for _ in range(2)]
def call(c):
    start.wait()
    print(f"{c.all_reduce(numpy.ones(1, numpy.float32))[0]}\\n", end="")
threads = [threading.Thread(target=call, args=(c,)) for c in communicators]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
        for _ in range(3):
            done = run(sys.executable, "-c", program)
            self.assertEqual(done.stdout, "1.0\n1.0\n", done.stderr)

    def test_leaving_with_sys_exit_0_is_no_failure(self):
        for code, aborted in ((0, []), (None, []), (3, ["rank 0 left after SystemExit: 3"]), ("", ["rank 0 left after SystemExit: "])):
            c = mock.Mock(rank=0)
            rondo.Communicator.__exit__(c, SystemExit, SystemExit(code), None)
            self.assertEqual([call.args[0] for call in c.abort.call_args_list], aborted)
            c.close.assert_called_once_with()

    def test_a_closed_communicator_is_refused(self):
        c = rondo.Communicator(0, 1)
        work = c.all_reduce(bytearray(5), async_op=True)
        c.close()
        c.close()
        self.refused("closed", c.barrier)
        self.assertEqual(work.wait(), bytearray(5))  # it had ended

    def test_close_refuses_the_calls_of_other_threads_and_waits_for_those_that_run(self):
        c, refusals = rondo.Communicator(0, 1), []
        pending = c.recv(bytearray(1), 0, async_op=True, stall_timeout=0.5)  # close() waits for it

        def call():
            try:
                while True:
                    c.all_reduce(bytearray(1 << 20))
            except ValueError as refusal:
                refusals.append(str(refusal))

        with in_threads([call]):
            c.close()
        self.assertEqual(refusals, ["this communicator is closed"])
        self.refused("", pending.wait, error=rondo.Error)

    def test_a_call_that_close_has_waited_for_succeeds(self):
        identity, pair, got, failures = rondo.make_unique_id(), [None, None], bytearray(1), []

        def create(rank):
            pair[rank] = rondo.Communicator(rank, 2, unique_id=identity)

        def receive():
            try:
                pair[0].recv(got, 1, stall_timeout=60)
            except (ValueError, rondo.Error) as failure:
                failures.append(failure)

        def send_once_it_closes():
            with contextlib.suppress(ValueError):
                while pair[0].size:
                    time.sleep(0.001)
            pair[1].send(b"y", 0)

        with in_threads((create, 0), (create, 1)):
            pass
        with in_threads([receive]):
            while "recv" not in pair[0].flight_record():
                time.sleep(0.001)
            with in_threads([send_once_it_closes]):
                pair[0].close()
        pair[1].close()
        self.assertEqual((failures, got), ([], b"y"))

    def test_a_signal_handler_may_close_it_before_a_call(self):
        import ctypes

        c = rondo.Communicator(0, 1)
        former = signal.signal(signal.SIGUSR1, lambda *_: c.close())
        try:
            with self.assertRaisesRegex(ValueError, "closed"):
                # No bytecode runs between the two calls, so the handler runs in barrier().
                list(map(CALL, [functools.partial(ctypes.pythonapi.PyErr_SetInterruptEx, signal.SIGUSR1), c.barrier]))
        finally:
            signal.signal(signal.SIGUSR1, former)

    def test_close_abandons_an_open_group(self):
        c = rondo.Communicator(0, 1)
        with self.assertRaisesRegex(ValueError, "closed"), c.group():
            work = c.recv(bytearray(1), 0, async_op=True)
            c.close()
        self.refused("abandoned: the communicator was closed", work.wait, error=rondo.Error)

    def test_close_can_be_repeated_after_a_signal_that_was_there_before(self):
        import ctypes

        c = rondo.Communicator(0, 1)
        with self.assertRaises(KeyboardInterrupt):
            # No bytecode runs between the two calls, so the signal is found in close().
            list(map(CALL, [ctypes.pythonapi.PyErr_SetInterrupt, c.close]))
        self.assertEqual(c.all_reduce(b"ab"), b"ab")
        c.close()
        self.refused("closed", c.barrier)

    def test_finish_frees_the_arrays_of_dropped_operations(self):
        y = np.zeros(3)
        seen = weakref.ref(y)
        self.c.recv(y, 0, 1, async_op=True)
        del y
        self.c.send(np.ones(3), 0, 1)
        self.c.finish()
        self.assertIsNone(seen())

    def test_device_memory_needs_a_device(self):
        x = np.zeros(3)
        for call in (self.c.register_device_memory, self.c.unregister_device_memory):
            with self.assertRaisesRegex(rondo.Error, "not on a device") as caught:
                call(x)
            self.assertNotIn("::", str(caught.exception))  # what Python has not
        with self.assertRaises(rondo.Error):
            rondo.DeviceMemory(16, 4711)

    def test_freed_ranges_make_room_in_a_full_arena(self):
        program = """
import numpy, rondo
for reused in True, False:
    x = rondo._empty(48 << 20, numpy.uint8, reused=True)
    del x
    x = rondo._empty(40 << 20, numpy.uint8, reused=reused)
    print(rondo.is_library_memory(x))
    del x
"""
        done = run(sys.executable, "-c", program, RONDO_ARENA_BYTES="64M")
        self.assertEqual((done.returncode, done.stdout), (0, "True\nTrue\n"), done.stderr)

    def test_threads_meet_by_an_id_or_by_an_all_gather_of_their_own(self):
        for ranks in (2, 3):
            identity, meeting, blobs, sums = rondo.make_unique_id(), threading.Barrier(ranks), [None] * ranks, {}

            class FakeMpi:
                def __init__(self, rank):
                    self.rank = rank

                Get_rank = lambda self: self.rank
                Get_size = lambda self: ranks

                def allgather(self, blob):
                    blobs[self.rank] = blob
                    meeting.wait(20)
                    return list(blobs)

            def rank_thread(rank):
                with rondo.Communicator(rank, ranks, unique_id=identity) as c:
                    sums["id", rank] = c.all_reduce(bytes([rank]))[0]
                with rondo.Communicator.from_mpi(FakeMpi(rank)) as c:
                    sums["mpi", rank] = c.all_reduce(bytes([rank]))[0]

            with in_threads(*((rank_thread, rank) for rank in range(ranks))):
                pass
            self.assertEqual(set(sums.values()), {ranks * (ranks - 1) // 2})
            self.assertEqual(len(sums), 2 * ranks)

    def test_a_group_whose_body_fails_runs_nothing(self):
        c, got = self.c, bytearray(3)
        with self.assertRaises(ZeroDivisionError), c.group():
            c.send(b"abc", 0)
            c.recv(got, 0)
            work = c.send(b"abc", 0, async_op=True)
            raise ZeroDivisionError("no data")
        self.assertEqual(got, bytes(3))
        self.refused("the group was abandoned: ZeroDivisionError: no data", work.wait, error=rondo.Error)
        with c.group():
            c.send(b"xyz", 0)
            c.recv(got, 0)
        self.assertEqual(got, b"xyz")

    def test_a_group_ends_after_an_exception_of_any_text(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        for failure, text in ((ValueError("\ud800"), "ValueError: ?"), (Mute(), "Mute")):
            with self.assertRaises(type(failure)), self.c.group():
                work = self.c.send(b"abc", 0, async_op=True)
                raise failure
            self.refused(f"the group was abandoned: {text}", work.wait, error=rondo.Error)
        self.assertEqual(self.c.all_reduce(b"ab"), b"ab")

    def test_waiting_inside_the_group_that_holds_the_operation_is_refused(self):
        c, y = self.c, np.zeros(3, "int32")
        seen = weakref.ref(y)
        with c.group():
            works = [c.recv(y, 0, async_op=True), c.send(np.arange(3, dtype="int32"), 0, async_op=True)]
            del y
            for work in works:
                self.refused("call group_end() first", work.wait, error=rondo.Error)
            self.assertIsNotNone(seen())  # the operation still needs it
        self.assertEqual(works[0].wait().tolist(), [0, 1, 2])
        works[1].wait()

    def test_an_old_interrupt_harms_no_later_call(self):
        for _ in range(3):
            with self.assertRaises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            self.c.barrier()

    def test_an_exception_of_the_all_gather_reaches_the_caller(self):
        def broken(_):
            raise KeyError("no store")

        with self.assertRaises(KeyError):
            rondo.Communicator(0, 2, all_gather=broken)
        for gives, said in ((lambda blob: [blob], "gave 1 blobs for 2 ranks"), (lambda blob: [blob] * 3, "gave more than 2 blobs"),
                            (lambda blob: [blob, b"abc"], "gave a blob of 3 bytes, not ")):
            self.refused(said, rondo.Communicator, 0, 2, all_gather=gives, error=rondo.Error)

    def test_a_text_that_is_no_utf_8_is_shown(self):
        program = "import rondo\ntry:\n    rondo.Communicator(0, 1)\nexcept rondo.Error as error:\n    print(ascii(str(error)))"
        done = run(sys.executable, "-c", program, RONDO_TIMEOUT=os.fsdecode(b"\xe4"))
        self.assertIn("RONDO_TIMEOUT is '\\ufffd'", done.stdout, done.stderr)

    def test_the_package_has_the_syntax_of_the_oldest_python_that_it_allows(self):
        root = HERE.parents[1]
        oldest = re.search(r'requires-python = ">=3\.(\d+)"', (root / "pyproject.toml").read_text(encoding="utf-8"))
        sources = [path for path in (root / "python").rglob("*.py*") if path.suffix in (".py", ".pyi")]
        self.assertGreater(len(sources), 8)
        for path in sources:
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, int(oldest[1])))

    def test_an_older_torch_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            stub = pathlib.Path(folder, "torch")
            (stub / "distributed").mkdir(parents=True)
            (stub / "__init__.py").write_text("__version__ = '2.14.1+cpu'\n")
            (stub / "distributed/__init__.py").write_text("")
            done = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); import rondo; import rondo.torch")
        self.assertIn("ImportError: rondo's backend needs torch 2.15 or newer; this is 2.14.1+cpu", done.stderr)

    def test_without_numpy(self):
        done = run(sys.executable, "-c", "import sys; sys.modules['numpy'] = None; import rondo; c = rondo.Communicator(0, 1); "
                   "print(c.all_reduce(b'ab'), rondo.__version__)")
        self.assertEqual(done.stdout, f"bytearray(b'ab') {rondo.__version__}\n", done.stderr)


if __name__ == "__main__":
    BIN, PACKAGE, OTHER_VERSION = (os.path.abspath(path) for path in sys.argv[1:4])
    del sys.argv[1:4]
    sys.path.insert(0, PACKAGE)
    import numpy as np
    import rondo

    unittest.main()
