class Error(RuntimeError):
    """A failure that rondo reports: `code` is its name ("peer died", "mismatch", "timeout", ...), `rank` the rank that saw it."""

    def __init__(self, message, code="", rank=-1):
        super().__init__(message)
        self.code = code
        self.rank = rank


def described(failure):
    """As the C API takes it: an exception's text may not be had, or not be UTF-8."""
    try:
        text = f"{type(failure).__name__}: {failure}"
    except Exception:  # noqa: BLE001
        text = type(failure).__name__
    return text.encode("utf-8", "replace").decode()
