from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Optional, TypedDict, Union

from typing_extensions import Unpack

# numpy's and torch's arrays, bytearray, array.array, memoryview, whatever has __dlpack__; contiguous.
Array = Any
Algorithm = Literal["auto", "ring", "one-shot", "two-shot", "one-shot-direct", "two-shot-direct", "flat", "tree", "star",
                    "hierarchical", "hierarchical-tree"]
Op = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "mulsum"]

class Options(TypedDict, total=False):
    algorithm: Optional[Algorithm]
    timeout: Optional[float]  # seconds without any progress
    factor: Optional[float]  # of this rank's input, with "mulsum"
    stream: Optional[int]  # the cudaStream_t, with a device
    async_op: bool  # True: the call returns a Work, which yields the result

__version__: str

ANY_SOURCE: int
ANY_TAG: int

class Envelope(NamedTuple):
    source: int
    tag: int
    count: int
    dtype: str

class Error(RuntimeError):
    code: str
    rank: int

class Work:
    def wait(self) -> Any: ...
    def test(self) -> bool: ...
    @property
    def times(self) -> tuple[int, int, int]: ...
    @property
    def envelope(self) -> Optional[Envelope]: ...

class Communicator:
    rank: int
    size: int
    def __init__(
        self,
        rank: int = -1,
        world_size: int = -1,
        *,
        rendezvous: Optional[str] = None,
        unique_id: Optional[str] = None,
        all_gather: Optional[Callable[[bytes], Iterable[bytes]]] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
        bootstrap_timeout: Optional[float] = None,
        channels: int = 0,
        slots: int = 0,
        slot_bytes: int = 0,
        pace: Optional[str] = None,
        links: Optional[str] = None,
        algorithm: Optional[Algorithm] = None,
        reproducible: bool = False,
        device: int = -1,
    ) -> None: ...
    @staticmethod
    def from_mpi(comm: Any, **settings: Any) -> Communicator: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(self, *failure: object) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def all_reduce(self, x: Array, y: Optional[Array] = None, op: Op = "sum", **options: Unpack[Options]) -> Any: ...
    def reduce_scatter(self, x: Array, y: Optional[Array] = None, op: Op = "sum", **options: Unpack[Options]) -> Any: ...
    def all_gather(self, x: Array, y: Optional[Array] = None, **options: Unpack[Options]) -> Any: ...
    def all_to_all(self, x: Array, y: Optional[Array] = None, **options: Unpack[Options]) -> Any: ...
    def broadcast(self, x: Array, root: int = 0, **options: Unpack[Options]) -> Any: ...
    def reduce(self, x: Array, y: Optional[Array] = None, root: int = 0, op: Op = "sum", **options: Unpack[Options]) -> Any: ...
    def gather(self, x: Array, y: Optional[Array] = None, root: int = 0, **options: Unpack[Options]) -> Any: ...
    def scatter(self, x: Optional[Array], y: Optional[Array] = None, root: int = 0, **options: Unpack[Options]) -> Any: ...
    def all_gather_v(
        self, x: Array, y: Array, counts: Sequence[int], offsets: Optional[Sequence[int]] = None, **options: Unpack[Options]
    ) -> Any: ...
    def reduce_scatter_v(
        self,
        x: Array,
        y: Array,
        counts: Sequence[int],
        offsets: Optional[Sequence[int]] = None,
        op: Op = "sum",
        **options: Unpack[Options],
    ) -> Any: ...
    def all_to_all_v(
        self,
        x: Array,
        x_counts: Sequence[int],
        y: Array,
        y_counts: Sequence[int],
        x_offsets: Optional[Sequence[int]] = None,
        y_offsets: Optional[Sequence[int]] = None,
        **options: Unpack[Options],
    ) -> Any: ...
    def gather_v(
        self,
        x: Array,
        y: Optional[Array],
        counts: Sequence[int],
        offsets: Optional[Sequence[int]] = None,
        root: int = 0,
        **options: Unpack[Options],
    ) -> Any: ...
    def scatter_v(
        self,
        x: Optional[Array],
        y: Array,
        counts: Sequence[int],
        offsets: Optional[Sequence[int]] = None,
        root: int = 0,
        **options: Unpack[Options],
    ) -> Any: ...
    def inclusive_scan(self, x: Array, y: Optional[Array] = None, op: Op = "sum", **options: Unpack[Options]) -> Any: ...
    def exclusive_scan(self, x: Array, y: Optional[Array] = None, op: Op = "sum", **options: Unpack[Options]) -> Any: ...
    def send(self, x: Array, peer: int, tag: Optional[int] = None, **options: Unpack[Options]) -> Any: ...
    def recv(self, y: Array, peer: int, tag: Optional[int] = None, **options: Unpack[Options]) -> Any: ...
    def probe(self, peer: int = ..., tag: int = ..., **options: Unpack[Options]) -> Envelope: ...
    def try_probe(self, peer: int = ..., tag: int = ...) -> Optional[Envelope]: ...
    def barrier(self, **options: Unpack[Options]) -> Any: ...
    def group(self) -> AbstractContextManager[Communicator]: ...
    def split(self, color: Optional[int], key: int = 0, name: Optional[str] = None) -> Optional[Communicator]: ...
    def duplicate(self) -> Communicator: ...
    def abort(self, reason: str) -> None: ...
    def check(self) -> None: ...
    def plan(self, collective: str, count: int, dtype: str = "float", *, op: Op = "sum", library_memory: bool = False) -> dict[str, Any]: ...
    def stats(self) -> dict[str, int]: ...
    def flight_record(self) -> str: ...

def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any: ...
def is_library_memory(array: Array) -> bool: ...
def make_unique_id() -> str: ...
