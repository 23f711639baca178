#!/usr/bin/env python3
"""rondo from Python by ctypes alone: ctypes_test.py LIBRONDO.SO. Two processes meet by a unique id, then by an all-gather
over multiprocessing's pipes, and all-reduce, blocking and asynchronously; errors arrive as text."""
import ctypes
import multiprocessing
import sys

RANKS, COUNT = 2, 1000
FLOAT32, SUM, INVALID_ARGUMENT = 0, 0, 1
ALL_GATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("world_size", ctypes.c_int32),
                ("rendezvous", ctypes.c_char_p), ("name", ctypes.c_char_p), ("stall_timeout_ms", ctypes.c_int64),
                ("bootstrap_timeout_ms", ctypes.c_int64), ("channels", ctypes.c_int32), ("slots", ctypes.c_int32),
                ("slot_bytes", ctypes.c_size_t), ("pace", ctypes.c_char_p), ("algorithm", ctypes.c_int32),
                ("reserved", ctypes.c_int32), ("unique_id", ctypes.c_char_p), ("all_gather", ALL_GATHER),
                ("all_gather_context", ctypes.c_void_p)]


class Rondo:
    """librondo.so, with failures as exceptions."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.rondo_last_error.restype = ctypes.c_char_p

    def check(self, code):
        if code != 0:
            raise RuntimeError(f"code {code}: {self.library.rondo_last_error().decode()}")

    def create(self, rank, **settings):
        config = Config()
        self.library.rondo_config_init(ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(config)))
        config.rank, config.world_size, config.bootstrap_timeout_ms = rank, RANKS, 30000
        for name, value in settings.items():
            setattr(config, name, value)
        world = ctypes.c_void_p()
        self.check(self.library.rondo_create(ctypes.byref(world), ctypes.byref(config)))
        return world


def all_reduce(rondo, world, rank):
    data = (ctypes.c_float * COUNT)(*[rank + i for i in range(COUNT)])
    result = (ctypes.c_float * COUNT)()
    count = ctypes.c_size_t(COUNT)
    rondo.check(rondo.library.rondo_all_reduce(world, data, result, count, FLOAT32, SUM, None))
    expected = [sum(r + i for r in range(RANKS)) for i in range(COUNT)]
    assert list(result) == expected, f"rank {rank}: {result[:4]} and so on"
    work = ctypes.c_void_p()
    rondo.check(rondo.library.rondo_all_reduce_async(world, data, data, count, FLOAT32, SUM, None, ctypes.byref(work)))
    rondo.check(rondo.library.rondo_work_wait(work))
    rondo.library.rondo_work_release(work)
    assert list(data) == expected, f"rank {rank}: in place, {data[:4]} and so on"


def rank_main(path, rank, unique_id, pipe, results):
    try:
        rondo = Rondo(path)
        world = rondo.create(rank, unique_id=unique_id)
        all_reduce(rondo, world, rank)
        code = rondo.library.rondo_all_reduce(world, None, None, ctypes.c_size_t(1), FLOAT32, SUM, None)
        error = rondo.library.rondo_last_error().decode()
        assert code == INVALID_ARGUMENT and "null" in error, f"{code}: {error}"
        rondo.library.rondo_destroy(world)

        def gather(_, own, length, out):
            blob = ctypes.string_at(own, length)
            pipe.send_bytes(blob)
            other = pipe.recv_bytes()
            ctypes.memmove(out, blob + other if rank == 0 else other + blob, RANKS * length)
            return 0

        world = rondo.create(rank, all_gather=ALL_GATHER(gather))
        all_reduce(rondo, world, rank)
        rondo.library.rondo_destroy(world)
        results.put((rank, "ok"))
    except Exception as error:  # whatever it is, the parent says it
        results.put((rank, repr(error)))


def main():
    rondo = Rondo(sys.argv[1])
    text = ctypes.create_string_buffer(128)
    rondo.check(rondo.library.rondo_make_unique_id(text))
    context = multiprocessing.get_context("spawn")
    pipes, results = context.Pipe(), context.Queue()
    ranks = [context.Process(target=rank_main, args=(sys.argv[1], rank, text.value, pipes[rank], results), daemon=True)
             for rank in range(RANKS)]
    for process in ranks:
        process.start()
    said = dict(results.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(timeout=60)
    print(said)
    sys.exit(0 if list(said.values()) == ["ok"] * RANKS and all(p.exitcode == 0 for p in ranks) else 1)


if __name__ == "__main__":
    main()
