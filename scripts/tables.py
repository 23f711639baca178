"""Tables of measurements as Markdown and as plain text."""


def size_text(size):
    """8192 as 8K, as rondo-perf's -b and -e accept it."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def markdown_of(header, lines):
    """All columns are aligned right: most are numbers."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---:"] * len(header), *lines]) + "\n"


def plain_text_of(header, lines):
    widths = [max(len(row[i]) for row in [header, *lines]) for i in range(len(header))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [header, *lines]) + "\n"
