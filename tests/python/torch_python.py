"""Whether this Python has the torch that rondo's backend needs."""


def has_torch():
    """Says why not."""
    try:
        import torch
    except (ImportError, OSError) as missing:  # of it, or of a library that it needs
        print(f"skipped: {missing}")
        return False
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15):
        print(f"skipped: torch is {torch.__version__}")
        return False
    return True
