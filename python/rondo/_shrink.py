"""A communicator of some ranks of another one, which they alone ask for: what torch's shrink_group() is."""
import array

import rondo

_TAG = 32767  # the last one: messages of the program that nobody has received have others


def shrunk(c, members, name, timeout):
    """While c works the members meet by its messages, whatever the other ranks do. After a failure c.shrink() says who is left, which
    must be the members."""
    try:
        c.check()
        return _meet(c, members, name, timeout)
    except rondo.Error:  # of c, perhaps just now; where it is not, this says who has ended
        left = c.shrink()
    found = left.former_ranks
    if found != members:
        left.close()
        raise rondo.Error(f"shrink_group: {_list(found)} are left, which are not all but the excluded ones: {_list(members)}", "peer died",
                          c.rank)
    return left


def _list(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank) for rank in ranks)}"


def _meet(c, members, name, timeout):
    """The first member learns whom each of the others means, and answers with an id, or without one if they do not agree."""
    first, own, answer = members[0], array.array("q", members), bytearray(128)
    if c.rank == first:
        agree = True
        for rank in members[1:]:
            theirs = array.array("q", [-1] * c.size)
            c.recv(theirs, rank, _TAG, timeout=timeout)
            agree &= [member for member in theirs if member >= 0] == members
        text = rondo.make_unique_id().encode() if agree else b""
        answer[:len(text)] = text
        for rank in members[1:]:
            c.send(answer, rank, _TAG, timeout=timeout)
    else:
        c.send(own, first, _TAG, timeout=timeout)
        c.recv(answer, first, _TAG, timeout=timeout)
    unique_id = answer.rstrip(b"\0").decode()
    if not unique_id:
        raise ValueError(f"shrink_group: the ranks do not exclude the same ones; rank {c.rank} would go on with {_list(members)}")
    return rondo.Communicator(members.index(c.rank), len(members), unique_id=unique_id, name=name, timeout=timeout)
