"""New arrays for results: of the kind and type of another one."""
import sys


def like(x, times, parts):
    """An array like x whose first dimension is `times` / `parts` as long, or of x's shape if both are 0; without defined contents. For a
    buffer that is neither numpy's nor torch's: a bytearray, or a memoryview of one with x's format."""
    shape = getattr(x, "shape", None)
    if shape is None or isinstance(x, memoryview):
        try:
            view = memoryview(x)
        except TypeError:  # __dlpack__ alone
            raise TypeError(f"of what kind an array like a {type(x).__name__} is rondo cannot tell: pass y for the result") from None
        zeros = bytearray(view.nbytes if times == 0 else view.nbytes * times // parts)
        return zeros if view.format == "B" else memoryview(zeros).cast(view.format)
    if times != 0:
        first, rest = (shape[0], tuple(shape[1:])) if len(shape) else (1, ())
        if first * times % parts:
            raise ValueError(f"x has {first} rows, which {parts} ranks cannot share equally: pass y")
        shape = (first * times // parts, *rest)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(x, numpy.ndarray):  # hasattr takes long where there is no such attribute
        if hasattr(x, "new_empty"):  # torch
            return x.new_empty(shape)
        import numpy

    return numpy.empty(shape, x.dtype)
