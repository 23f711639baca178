"""A page for man(1), in the roff of man(7)."""
import os
import re
import textwrap
import time


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def prose(text):
    """In short lines, as the source of a page is to have."""
    lines = textwrap.wrap(text, 76, break_long_words=False, break_on_hyphens=False)
    return "\n".join(escape(line) for line in lines)


def bold(text):
    return f"\\fB{escape(text)}\\fR"


def italic(text):
    return f"\\fI{escape(text)}\\fR"


def paragraphs(options):
    lines = []
    for option in options:
        is_flag = option.names[0].startswith("-")
        tag = ", ".join(bold(name) if is_flag else italic(name) for name in option.names)
        if is_flag and option.value:
            tag += " " + italic(option.value)
        lines += [".TP", tag, prose(option.sentences())]
    return lines


def date():
    """Today, or what reproducible builds set."""
    return time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))


def synopsis(help_):
    """Literal words bold, what stands for something italic."""
    words = [bold(word) if re.match(r"-|rondo-", word) else italic(word) if word.isalpha() else escape(word)
             for word in help_.synopsis.split()]
    return " ".join(words)


def page(help_, purpose, examples, others, environment, version):
    """purpose: a phrase. examples: commands. others: further pages. environment: (variable, default, meaning), maybe none."""
    lines = [f'.TH {help_.program.upper()} 1 {date()} "rondo {version}" "User Commands"', ".SH NAME",
             f"{help_.program} \\- {escape(purpose)}", ".SH SYNOPSIS", synopsis(help_), ".SH DESCRIPTION", prose(help_.description)]
    if help_.positionals:
        lines += [".SH ARGUMENTS", *paragraphs(help_.positionals)]
    for heading, options in help_.groups:
        lines += [f'.SH "{escape(heading.upper())}"', *paragraphs(options)]
    lines += [".SH EXIT STATUS", "0 only on success."]
    if environment:
        lines += [".SH ENVIRONMENT", "An empty value counts as unset."]
        for variable, default, meaning in environment:
            lines += [".TP", bold(variable), prose(f"{meaning}. Default: {default}.")]
    if examples:
        lines += [".SH EXAMPLES", ".nf", *(escape(command) for command in examples), ".fi"]
    if others:
        lines += [".SH SEE ALSO", ",\n".join(f".BR {escape(name)} (1)" for name in others)]
    if not environment:
        lines += [".PP", "The environment variables of rondo are listed in", ".BR rondo\\-run (1)."]
    return "\n".join(lines) + "\n"
