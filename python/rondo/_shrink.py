"""A communicator of some ranks of another one, which they alone ask for: what torch's shrink_group() is."""
import array
import os

import rondo

_TAG = 32767  # the last one: messages of the program that nobody has received have others


def shrunk(c, members, name, timeout):
    """While c works the members meet by its messages, whatever the other ranks do. After a failure c.shrink() says who is left, which
    must be the members. Neither waits for longer than RONDO_BOOTSTRAP_TIMEOUT says: a rank that others exclude may not call this."""
    patience = min(timeout, float(os.environ.get("RONDO_BOOTSTRAP_TIMEOUT") or 60))
    try:
        c.check()
        unique_id = _meet(c, members, patience)
        return rondo.Communicator(members.index(c.rank), len(members), unique_id=unique_id, name=name, stall_timeout=timeout,
                                  bootstrap_timeout=patience)
    except rondo.Error:  # of c, perhaps just now; where it is not, this says who has ended
        left = c.shrink(patience)
    try:
        _expect_members(left, c.rank, members, patience)
    except BaseException:
        left.close()
        raise
    return left


def _list(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank) for rank in ranks)}"


def _difference(wishes):
    """Of {rank: whom it would go on with}; empty if all mean the same."""
    first, members = next(iter(wishes.items()))
    for rank, theirs in wishes.items():
        if theirs != members:
            return (f"shrink_group: the ranks do not exclude the same ones: rank {first} would go on with {_list(members)}, "
                    f"rank {rank} with {_list(theirs)}")
    return ""


def _expect_members(left, rank, members, patience):
    found = left.former_ranks
    difference = _difference(dict(zip(found, left.all_gather_object(members, stall_timeout=patience))))
    if difference:
        raise ValueError(difference)
    if found != members:
        raise rondo.Error(f"shrink_group: {_list(found)} {'is' if len(found) == 1 else 'are'} left, which are not all but the excluded "
                          f"ones: {_list(members)}", "peer died", rank)


def _meet(c, members, patience):
    """An id for the new communicator. The first member learns whom each of the others means, and answers with the id, or with how they
    differ."""
    first = members[0]
    if c.rank == first:
        wishes = {first: members}
        for rank in members[1:]:
            theirs = array.array("q", [-1] * c.size)
            c.recv(theirs, rank, _TAG, stall_timeout=patience)
            wishes[rank] = [member for member in theirs if member >= 0]
        answer = _difference(wishes) or rondo.make_unique_id()
        for rank in members[1:]:
            c.send(bytearray(answer.encode()), rank, _TAG, stall_timeout=patience)
    else:
        c.send(array.array("q", members), first, _TAG, stall_timeout=patience)
        buffer = bytearray(256 + 16 * c.size)  # two lists of ranks
        c.recv(buffer, first, _TAG, stall_timeout=patience)
        answer = buffer.rstrip(b"\0").decode()
    if answer.startswith("shrink_group"):
        raise ValueError(answer)
    return answer
