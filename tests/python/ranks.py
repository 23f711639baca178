#!/usr/bin/env python3
"""ranks.py CASE...: what a rank of module_test.py does. Closed-form integers, so that a missing, doubled or misplaced part shows."""
import array
import contextlib
import os
import signal
import sys
import threading
import time

import rondo
from refused import refused

try:
    import numpy as np
except ImportError:
    np = None


def value(rank, i):
    return (rank + 1) * 10 + i % 7


def data(rank, count, dtype="float32"):
    return np.array([value(rank, i) for i in range(count)]).astype(dtype)


def total(ranks, count, dtype="float32"):
    return np.array([sum(value(rank, i) for rank in range(ranks)) for i in range(count)]).astype(dtype)


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found.dtype, found.shape, expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes(), (found, expected)


def equal_blocks(c):
    n, r = c.size, c.rank
    for dtype in ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        for count in (0, 1, 5, 1000):
            x = data(r, count, dtype)
            same(c.all_reduce(x), total(n, count, dtype))
            same(c.all_gather(x), np.concatenate([data(rank, count, dtype) for rank in range(n)]))
            whole = data(r, count * n, dtype)
            same(c.reduce_scatter(whole), total(n, count * n, dtype)[count * r:count * (r + 1)])
            same(c.all_to_all(whole), np.concatenate([data(rank, count * n, dtype)[count * r:count * (r + 1)] for rank in range(n)]))
    same(c.all_reduce(data(r, 6).reshape(2, 3), op="max"), data(n - 1, 6).reshape(2, 3))
    same(c.all_reduce(data(r, 4), op="avg"), (total(n, 4) / np.float32(n)).astype("float32"))
    same(c.all_reduce(np.array([255 - r, r], "uint8"), op="avg"), np.array([sum(255 - k for k in range(n)) // n, (n - 1) // 2], "uint8"))
    for factor in (2.0, 2, np.int8(2), np.float32(2), np.array(2), np.array(2.0)):
        same(c.all_reduce(data(r, 4), op="mulsum", factor=factor), 2 * total(n, 4))
    for dtype, factor, words in (("int32", 0.5, "not a value of int32"), ("int8", 300, "not a value of int8"), ("float32", 1e39, "becomes inf"),
                                 ("int64", 2**53 + 1, "is not exact"), ("int64", np.int64(2**53 + 1), "is not exact"),
                                 ("uint64", np.array(2**53 + 1), "is not exact")):
        with refused(words, kind=(ValueError, rondo.Error)):
            c.all_reduce(np.zeros(4, dtype), op="mulsum", factor=factor)
    same(c.inclusive_scan(data(r, 9)), total(r + 1, 9))
    same(c.exclusive_scan(data(r, 9)), total(r, 9))
    same(c.all_gather(np.float32(r)), np.arange(n, dtype="float32"))


def roots(c):
    n, r = c.size, c.rank
    for root in range(n):
        x = data(r, 9)
        same(c.broadcast(x, root=root), data(root, 9))
        same(x, data(r, 9))
        y = np.empty(9, "float32")
        assert c.broadcast(x, y, root) is y
        same(y, data(root, 9))
        assert c.broadcast(x, x, root) is x
        same(x, data(root, 9))
        x = data(r, 9)
        out = c.reduce(x, root=root)
        gathered = c.gather(x, root=root)
        if r == root:
            same(out, total(n, 9))
            same(gathered, np.concatenate([data(rank, 9) for rank in range(n)]))
            same(c.scatter(data(root, 2 * n), root=root), data(root, 2 * n)[2 * r:2 * r + 2])
        else:
            assert out is None and gathered is None
            y = np.empty(2, "float32")
            assert c.scatter(None, y, root) is y
            same(y, data(root, 2 * n)[2 * r:2 * r + 2])


def varying_blocks(c):
    n, r = c.size, c.rank
    counts = [rank + 1 for rank in range(n)]
    offsets = [sum(counts[:rank]) + rank for rank in range(n)]  # a gap of one between blocks
    y = np.full(sum(counts) + n, -1, "float32")
    c.all_gather_v(data(r, counts[r]), y, counts, offsets)
    for rank in range(n):
        same(y[offsets[rank]:offsets[rank] + counts[rank]], data(rank, counts[rank]))
        assert y[offsets[rank] + counts[rank]] == -1
    y = np.empty(counts[r], "float32")
    c.reduce_scatter_v(data(r, sum(counts)), y, counts)
    begin = sum(counts[:r])
    same(y, total(n, sum(counts))[begin:begin + counts[r]])
    for root in range(n):
        y = np.empty(sum(counts), "float32")
        gathered = c.gather_v(data(r, counts[r]), y if r == root else None, counts, root=root)
        if r == root:
            same(gathered, np.concatenate([data(rank, counts[rank]) for rank in range(n)]))
        x = data(root, sum(counts)) if r == root else None
        same(c.scatter_v(x, np.empty(counts[r], "float32"), counts, root=root), data(root, sum(counts))[begin:begin + counts[r]])
    y = np.empty(n * (r + 1), "float32")
    c.all_to_all_v(data(r, sum(counts)), counts, y, [r + 1] * n)
    same(y, np.concatenate([data(rank, sum(counts))[begin:begin + counts[r]] for rank in range(n)]))


def kinds_of_memory(c):
    n, r = c.size, c.rank
    x, y = array.array("i", [r, 2]), array.array("i", [0, 0])
    c.all_reduce(x, y)
    assert list(y) == [n * (n - 1) // 2, 2 * n], y
    text = bytearray(b"rondo" if r == 0 else 5)
    view = memoryview(text)
    assert c.broadcast(view, view) is view
    assert text == b"rondo"
    assert c.broadcast(b"rondo" if r == 0 else bytes(5)) == b"rondo"  # a new bytearray
    assert list(c.all_reduce(array.array("i", [r]))) == [n * (n - 1) // 2]
    assert c.all_gather(bytes([r])) == bytes(range(n))  # a new bytearray
    library = rondo.empty((2, 50), "float64")
    assert library.shape == (2, 50) and library.dtype == "float64" and not library.any() and rondo.is_library_memory(library)
    assert not rondo.is_library_memory(x)
    assert rondo.empty(0).shape == (0,) and c.all_reduce(rondo.empty((3, 0))).shape == (3, 0)
    library[:] = r
    c.all_reduce(library, library)
    assert (library == n * (n - 1) / 2).all()
    try:
        import ml_dtypes
    except ImportError:
        return
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        found = c.all_reduce(np.full(3, 2, getattr(ml_dtypes, name)))
        assert found.dtype.name == name and (found.astype("float32") == 2 * n).all(), found


def messages(c):
    n, r = c.size, c.rank
    for _ in range(3):
        x, y = data(r, 100), np.empty(100, "float32")
        with c.group():
            c.send(x, (r + 1) % n)
            c.recv(y, (r - 1) % n)
            del x  # the group keeps it
        same(y, data((r - 1) % n, 100))
    right, left = (r + 1) % n, (r - 1) % n
    with c.group():
        for tag in (1, 2):
            c.send(np.full(tag, r, "int32"), right, tag)
        second, first = np.full(4, -1, "int32"), np.full(4, -1, "int32")
        c.recv(second, left, 2)
        c.recv(first, rondo.ANY_SOURCE, rondo.ANY_TAG)
    assert list(second) == [left, left, -1, -1] and list(first) == [left, -1, -1, -1], (first, second)
    sent = c.send(np.float64([r]), right, 9, async_op=True)
    assert c.probe() == rondo.Envelope(left, 9, 1, "double") == c.try_probe(left) and c.try_probe(tag=8) is None
    got = c.recv(np.empty(3), left, 9, async_op=True)
    assert got.wait()[0] == left and got.envelope == (left, 9, 1, "double")
    sent.wait()
    assert sent.envelope is None
    work = [c.send(data(r, 7), (r + 1) % n, async_op=True), c.recv(y[:7], (r - 1) % n, async_op=True)]
    for each in work:
        each.wait()
    same(y[:7], data((r - 1) % n, 7))


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not \udc80 this one")


def objects(c):
    n, r = c.size, c.rank
    for root in range(n):
        given = {"from": root, "text": "x" * 100000 * root, "none": None}
        found = c.broadcast_object(given if r == root else Unpicklable(), root)
        assert found == given and found is not given
    assert c.broadcast_object() is None
    assert c.all_gather_object(["rank", r] * r, stall_timeout=60) == [["rank", rank] * rank for rank in range(n)]
    if np is not None:
        same(c.all_gather_object(data(r, 3 + r))[n - 1], data(n - 1, 2 + n))
    last = n - 1
    for call in (lambda x: c.broadcast_object(x, last), c.all_gather_object):
        with refused("not \udc80 this one", kind=TypeError) if r == last else refused(
                f"the object of rank {last} cannot be pickled: TypeError: not ? this one", kind=rondo.Error, code="invalid argument"):
            call(Unpicklable() if r == last else "x" * 1000000)
    assert c.all_gather_object(r) == list(range(n))  # it goes on
    for call in (c.broadcast_object, c.all_gather_object):
        with refused("inside a group", kind=ValueError), c.duplicate() as other, other.group():
            getattr(other, call.__name__)(1)


def asynchronous(c):
    n, r = c.size, c.rank
    work = [c.all_reduce(data(r, 1000), async_op=True) for _ in range(20)]
    for each in work:
        same(each.wait(), total(n, 1000))
        issued, started, ended = each.times
        assert each.test() and 0 < issued <= started <= ended
    results = np.zeros((50, 10000), "float32")
    for i in range(50):
        c.all_reduce(np.full(10000, r + i, "float32"), results[i], async_op=True)  # nobody keeps these arrays, or the Work
    c.barrier()
    same(results[:, 7], np.array([n * (n - 1) // 2 + n * i for i in range(50)], "float32"))


def state(c):
    n, r = c.size, c.rank
    assert (c.rank, c.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    with c.split(r % 2, -r, "halves") as part:
        assert part.size == (n + 1 - r % 2) // 2
        same(part.all_reduce(np.ones(3, "float32")), np.full(3, part.size, "float32"))
        same(part.all_gather(np.int32([r])), np.arange(n, dtype="int32")[::-1][(n - 1 - r) % 2::2])
        with refused("halves", kind=rondo.Error) if part.size > 1 else contextlib.nullcontext():
            part.barrier()  # the error of ranks that are ahead ends what a slow rank is still in
            part.all_reduce(np.ones(1 + r))  # the ranks of a part disagree
    with c.split(0, 0, "x" + "\u00e4" * 59) as part:  # the name is cut after 60 bytes
        part.abort("\u20ac" * 1000)
        try:
            part.barrier()
            raise AssertionError("no error")
        except rondo.Error as error:
            assert str(error).startswith("x" + "\u00e4" * 29 + ": ") and "\ufffd" not in str(error), error
    assert c.split(None) is None
    same(c.duplicate().all_reduce(np.ones(3)), np.full(3, float(n)))
    same(c.all_reduce(np.ones(1)), np.full(1, float(n)))
    assert c.stats()["operations"] > 0 and "all_reduce" in c.flight_record(), c.flight_record()
    assert c.plan("all_reduce", 1 << 20)["bytes_sent_per_rank"] == (4 << 20) * 2 * (n - 1) // n or n == 3
    c.check()
    # Another thread of rank 0 lets the others come to the barrier in which rank 0's main thread waits.
    other = c.duplicate()
    if r == 0:
        thread = threading.Timer(0.05, lambda: [other.send(b"x", peer) for peer in range(1, n)])
        thread.start()
    else:
        other.recv(bytearray(1), 0)
    c.barrier()
    if r == 0:
        thread.join()


def forked(c):
    """The last case: the child goes on, too. It must not use its parent's communicator, and its end must not disturb it."""
    n, r = c.size, c.rank
    work = c.recv(np.empty(5, "float32"), 1 - r, async_op=True)
    sys.stdout.flush()  # else the child would print it, too
    child = os.fork()
    if child == 0:
        for call in (c.barrier, lambda: c.all_reduce(np.ones(3)), c.duplicate, c.stats, work.wait, work.test):
            with refused("forked", kind=ValueError):
                call()
        with rondo.Communicator(0, 1) as own:
            assert own.all_reduce(b"ab") == b"ab"
        return  # closes both
    assert os.waitpid(child, 0)[1] == 0
    c.send(data(r, 5), 1 - r)
    same(work.wait(), data(1 - r, 5))
    same(c.all_reduce(data(r, 5)), total(n, 5))


def closed_too_early(c):
    """close() waits for what can still end; what cannot fails, and close() does not wait for ever."""
    n, r = c.size, c.rank
    part = c.duplicate()
    y = np.empty(100000, "float32")
    work = part.all_reduce(data(r, 100000), y, async_op=True)
    part.close()
    assert work.test()
    same(work.wait(), total(n, 100000))
    part = c.duplicate()
    with refused(kind=rondo.Error, code="timeout"):
        work = part.recv(y, 1 - r, async_op=True, stall_timeout=0.2)  # fails at once after the other rank's has
        part.close()
        work.wait()
    c.barrier()


def places(c):
    assert len(c.hosts) == c.size and c.hosts[0] == 0, c.hosts
    assert (set(c.hosts) == {0, 1}) == bool(os.environ.get("RONDO_TEST_TWO_HOSTS")), c.hosts
    here = c.split(c.hosts[c.rank])
    assert here.size == c.hosts.count(c.hosts[c.rank]), (here.size, c.hosts)
    place = rondo.place_from_launcher()
    assert (place.rank, place.world_size) == (c.rank, c.size), place
    if "LOCAL_WORLD_SIZE" in os.environ:
        assert (place.local_rank, place.local_world_size) == (here.rank, here.size), place


def dies(c):
    """Rank 1 dies, and the others go on."""
    n, r = c.size, c.rank
    if r == 1:
        os._exit(0)
    with refused("rank 1", kind=rondo.Error, code="peer died", **({"rank": 0} if n == 2 else {})):
        c.barrier()
    assert c.former_ranks == []
    with c.shrink(patience=20) as left:
        assert (left.size, left.rank) == (n - 1, max(r - 1, 0)), (left.size, left.rank)
        assert left.former_ranks == [rank for rank in range(n) if rank != 1], left.former_ranks
        same(left.all_reduce(data(r, 5)), total(n, 5) - data(1, 5))
    with refused("seconds", kind=ValueError):
        c.shrink(patience=-1)


def disagree(c):
    with refused("count 3", "count 4", kind=rondo.Error, code="mismatch"):
        c.all_reduce(np.ones(3 + c.rank, "float32"))


def another_collective(c):
    x = np.ones(3, "float32")
    with refused("all_reduce", "broadcast", kind=rondo.Error, code="mismatch"):
        c.all_reduce(x) if c.rank == 0 else c.broadcast(x)


def only_sends(c):
    aside = c.duplicate()
    c.broadcast(np.ones(3, "float32"), root=c.rank)
    aside.barrier()
    with refused("root 0", "root 1", kind=rondo.Error, code="mismatch"):
        c.close()
    c.close()  # it is closed
    aside.close()


def soon_after(condition, act):
    """In a thread."""
    def wait():
        while not condition():
            time.sleep(0.001)
        time.sleep(0.1)
        act()

    threading.Thread(target=wait).start()


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def is_closed(c):
    try:
        return not c.size
    except ValueError:
        return True


def interrupted(c):
    if c.rank == 1:
        with refused("Ctrl-C", kind=rondo.Error, code="aborted"):
            c.recv(bytearray(1), 0)
        return
    soon_after(lambda: "recv" in c.flight_record(), interrupt)
    with refused(kind=KeyboardInterrupt):
        c.recv(bytearray(1), 1)


def signalled(c):
    """A handler runs while a call waits; rank 1 sends only then, and the call goes on. What it raises ends the call."""
    other = c.duplicate()

    def waits():
        if way == "call":
            c.recv(y, 1)
        else:
            work.wait() if way == "wait" else c.finish()

    def handle(_, frame):
        if frame.f_code is not waits.__code__:  # the machine is busy: later
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
            return
        for call in (c.barrier, c.close) if way == "call" else (c.close,):
            with refused("inside a call, which a signal's handler interrupts", kind=ValueError):
                call()
        other.send(b"x", 1)
        if raises:
            raise RuntimeError("enough")

    for number, way, raises in ((signal.SIGTERM, "call", False), (signal.SIGALRM, "wait", False), (signal.SIGTERM, "finish", False),
                                (signal.SIGTERM, "call", True)):
        c.barrier()
        if c.rank == 1:
            other.recv(bytearray(1), 0, stall_timeout=30)
            with refused("RuntimeError: enough", kind=rondo.Error) if raises else contextlib.nullcontext():
                c.send(b"y", 0)
                c.barrier()
            continue
        signal.signal(number, handle)
        soon_after(lambda: "recv" in c.flight_record(), lambda: os.kill(os.getpid(), number))  # noqa: B023
        y = bytearray(1)
        with refused(kind=RuntimeError, args=("enough",)) if raises else contextlib.nullcontext():
            work = None if way == "call" else c.recv(y, 1, async_op=True)
            waits()
            assert y == b"y"
            c.barrier()


def closes_in_vain(c):
    """Ctrl-C ends close(), which waits for a message that never comes; the others learn it."""
    pair = c.split(0, c.rank)
    work = pair.recv(bytearray(1), 1 - c.rank, async_op=True)
    if c.rank == 1:
        with refused("Ctrl-C", kind=rondo.Error, code="aborted"):
            pair.finish()
        return
    soon_after(lambda: is_closed(pair), interrupt)
    with refused(kind=KeyboardInterrupt):
        pair.close()
    assert work.test()


def finishes(c):
    """finish() waits for operations whose Works are gone."""
    sums = [np.full(100000, c.rank + 1 + i, "int32") for i in range(5)]
    for x in sums:
        c.all_reduce(x, x, async_op=True)
    c.finish()
    for i, x in enumerate(sums):
        assert (x == sum(r + 1 + i for r in range(c.size))).all()


if __name__ == "__main__":
    with rondo.Communicator() as world:
        for case in sys.argv[1:]:
            with world.duplicate() as c:  # which a case may leave unusable
                globals()[case](c)
                print(f"{case}: ok")
