"""For tests in Python: what has to be an error."""
import contextlib


@contextlib.contextmanager
def refused(*parts, kind=Exception, **attributes):
    """The body raises this kind of error, with these parts in its text and these attributes."""
    try:
        yield
    except kind as error:
        found = {name: getattr(error, name) for name in attributes}
        assert all(part in str(error) for part in parts) and found == attributes, f"not {parts}, {attributes}: {error!r}, {found}"
        return
    raise AssertionError(f"{parts}: not refused")
