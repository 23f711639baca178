"""Python's objects as messages: pickles, whose lengths travel before them. Unpickling runs what the sender wants: ranks of a job trust
each other (SECURITY.md)."""
import array
import io
import pickle

from rondo._error import Error, described


def _expect_usable(c, call):
    if c._on_device:
        raise ValueError(f"{call}: this communicator is on a device; objects are in the host's memory")
    if c._in_group:
        raise ValueError(f"{call} inside a group: its lengths come before the objects")


def _pickled(obj):
    """The pickle, and None; or the text of a failure, and the failure: the others wait for something."""
    try:
        buffer = io.BytesIO()
        pickle.dump(obj, buffer, pickle.HIGHEST_PROTOCOL)
        return buffer.getbuffer(), None
    except Exception as failure:  # noqa: BLE001
        return bytearray(described(failure).encode()[:1000]), failure


def _refuse(c, call, rank, text, failure):
    """On all ranks: by the object's own exception, or in words."""
    if failure is not None:
        raise failure
    raise Error(f"{call}: the object of rank {rank} cannot be pickled: {bytes(text).decode('utf-8', 'replace')}", "invalid argument", c.rank)


def broadcast_object(c, obj=None, root=0, *, stall_timeout=None):
    """The root's object, on all ranks; obj of the others is not looked at. The root gets a copy, too. If it cannot be pickled, that is
    an error of all ranks."""
    _expect_usable(c, "broadcast_object")
    mine, failure = _pickled(obj) if c.rank == root else (None, None)
    header = array.array("q", [0, 0] if mine is None else [len(mine), failure is not None])
    c.broadcast(header, header, root, stall_timeout=stall_timeout)
    length, failed = header
    text = bytearray(length) if mine is None else mine
    c.broadcast(text, text, root, stall_timeout=stall_timeout)
    if failed:
        _refuse(c, "broadcast_object", root, text, failure)
    return pickle.loads(text)


def all_gather_object(c, obj, *, stall_timeout=None):
    """Every rank's object, in a list by rank; this rank's own is a copy. If one cannot be pickled, that is an error of all ranks."""
    _expect_usable(c, "all_gather_object")
    mine, failure = _pickled(obj)
    headers = c.all_gather(array.array("q", [len(mine), failure is not None]), stall_timeout=stall_timeout).tolist()
    failed = [rank for rank in range(c.size) if headers[2 * rank + 1]]
    # After a failure only its text travels.
    counts = [headers[2 * rank] if not failed or rank in failed else 0 for rank in range(c.size)]
    everything = bytearray(sum(counts))
    c.all_gather_v(mine[:counts[c.rank]], everything, counts, stall_timeout=stall_timeout)
    parts, begin = [], 0
    for count in counts:
        parts.append(memoryview(everything)[begin:begin + count])
        begin += count
    if failed:
        _refuse(c, "all_gather_object", failed[0], parts[failed[0]], failure)
    return [pickle.loads(part) for part in parts]
