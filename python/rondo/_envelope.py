from typing import NamedTuple


class Envelope(NamedTuple):
    """What a message is: the rank that sent it, its tag, its number of elements, and their type ("float", "bfloat16", ...)."""

    source: int
    tag: int
    count: int
    dtype: str
