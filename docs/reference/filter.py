#!/usr/bin/env python3
"""docs/reference/filter.py HEADER: prints a public header as Doxygen reads it (INPUT_FILTER in the Doxyfile).

The headers are written for people who open them. Doxygen needs marks that would only disturb those:
- the first comment becomes the file's, and in C each comment that begins a line that of the declaration below it
- a comment after a declaration or a value, on the same line, becomes that one's
- a comment above several declarations without an empty line between them becomes that of each
"""
import re
import sys

CODE = r"(\s*(?!#|})[^\s/*].*?\s)"  # that a comment follows
FIRST = re.compile(r"(/\*|//) ")
DOCUMENTS = re.compile(r"\s*(///(?!<)|/\*\*(?!<)|\* )")  # a line of the comment above a declaration
DECLARES = re.compile(r"\s*(?!friend\b|namespace\b|private:|public:)[\w\[]")


def marked(lines):
    """The lines, with Doxygen's marks for the comments of the file, of C declarations, and after declarations."""
    heading, goes_on = True, False  # inside the file's first comment; after a comment that may continue on the next line
    for line in lines:
        heading = heading and bool(re.match(r"//| ?\*|/\*", line))
        if goes_on and re.match(r"\s+// ", line):
            yield line.replace("// ", "///< ", 1)
            continue
        goes_on = bool(re.match(CODE + "// ", line))
        line = re.sub("^" + CODE + "// ", r"\1///< ", line)
        line = re.sub("^" + CODE + r"/\* ", r"\1/**< ", line)
        line = re.sub(r"^(\s*)/\* (?!----)", r"\1/** ", line)
        yield "/" + line if heading and line.startswith("//") else line


def repeated(lines):
    """The lines, with a comment above several declarations repeated above each that has none of its own."""
    comment, last = [], ""  # of this paragraph; the line before that is no comment
    for line in lines:
        if not line.strip():
            comment, last = [], ""
        elif DOCUMENTS.match(line):
            if last:
                comment, last = [], ""
            comment.append(line)
        elif comment and DECLARES.match(line) and line.index(line.strip()) == comment[0].index(comment[0].strip()):
            if last and not last.lstrip().startswith("template") and "///<" not in line and "/**<" not in line:
                yield from comment
            last = line
        yield line


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = FIRST.sub(r"\1 @file\n\1 " if sys.argv[1].endswith("pp") else r"\1* @file\n * ", file.read(), count=1)
    print("\n".join(repeated(marked(text.splitlines()))))
