class Error(RuntimeError):
    """A failure that rondo reports: `code` is its name ("peer died", "mismatch", "timeout", ...), `rank` the rank that saw it."""

    def __init__(self, message, code="", rank=-1):
        super().__init__(message)
        self.code = code
        self.rank = rank
