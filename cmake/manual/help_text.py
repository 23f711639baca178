"""What a program's --help says, as CLI11 2.1 to 2.7 format it: description, synopsis, positional arguments, options."""
import dataclasses
import re
import subprocess

COLUMN = 30  # where CLI11's descriptions begin; a line that reaches it has its description on the next line
CONTINUED = 20  # a line indented as deep is no new option
PATH = re.compile(r"\b(files?|folder|profile|draw|data)\b|\bthere as JSON\b", re.IGNORECASE)
# A list of single words, alone or after a colon, up to a semicolon or the end: "force one algorithm: auto, ring, tree".
LIST = re.compile(r"(?:^|: )([\w-]+(?:, [\w-]+)+(?: or [\w-]+)?)(?=;|$)")
ACCEPTED = re.compile(r"accepted: (\d+(?:, \d+)*)$")


@dataclasses.dataclass
class Option:
    names: list  # of a positional argument: its name
    value: str = ""  # TEXT, INT, ...; empty: a flag
    check: str = ""  # what CLI11 says about values, such as "INT in [1 - 64]"
    default: str = ""
    notes: list = dataclasses.field(default_factory=list)  # sentences
    text: str = ""

    def choices(self):
        """The values, if help states a closed set of them."""
        if re.fullmatch(r"\{[\w,-]+\}|[\w-]+(\|[\w-]+)+", self.check):
            return re.split(r"[,|]", self.check.strip("{}"))
        stated = ACCEPTED.search(self.text)
        if not stated:
            stated = LIST.search(self.text)
            if not stated or stated[1].count(",") < 2:
                return []
        return re.split(r", | or ", stated[1])

    def is_path(self):
        in_words = not self.default or " " in self.default  # as "rondo's licence"
        return self.value.strip("[]") in ("TEXT", "FILE") and in_words and bool(PATH.search(self.text))

    def sentences(self):
        """The description, and what CLI11 knows besides."""
        said = [self.text] if self.text else []
        if span := re.fullmatch(r"\w+ in \[(\S+) - (\S+)\]", self.check):
            said.append(f"At least {span[1]}" if len(span[2]) > 18 else f"From {span[1]} to {span[2]}")
        elif choices := self.choices() if self.check else []:
            said.append("One of: " + ", ".join(choices))
        elif self.check.startswith("in ["):
            said.append(f"A number {self.check}")
        elif "|" in self.check:  # some of them patterns
            said.append("One of: " + ", ".join(self.check.split("|")))
        elif self.check:
            said.append({"NONNEGATIVE": "Not negative", "POSITIVE": "More than 0"}.get(
                self.check, "Accepted: " + self.check.replace("in [", "a number in [")))
        if self.default:
            said.append(f"Default: {self.default}")
        return " ".join(sentence if sentence.endswith("...") else f"{sentence.rstrip('.')}." for sentence in said + self.notes)


@dataclasses.dataclass
class Help:
    program: str
    synopsis: str
    description: str
    positionals: list
    groups: list  # (heading, options)

    def options(self):
        return [option for _, options in self.groups for option in options]

    def first_sentence(self):
        sentence = self.description.partition(". ")[0].rstrip(".")
        return sentence[:1].lower() + sentence[1:]

    def runs_a_program(self):
        return self.synopsis.endswith("PROGRAM [ARGS...]")


def parse_option(words):
    """"-d,--datatype TEXT=float" and the like, without the description."""
    names = re.match(r"-{1,2}[\w-]+(?:,\s*-{1,2}[\w-]+)*|\S+", words)[0]
    option = Option(names=re.split(r",\s*", names))
    rest = " " + words[len(names):].strip()
    for pattern, sentence in ((r" Excludes: (.+)$", "Not with {}"), (r" Needs: (.+)$", "Needs {}"),
                              (r" \(Env:(\w+)\)$", "Environment: {}"), (r"( REQUIRED)$", "Required"), (r"( \.\.\.)$", "")):
        if found := re.search(pattern, rest):
            rest = rest[:found.start()]
            if sentence:
                option.notes.insert(0, sentence.format(", ".join(found[1].split())))
    if rest := rest.strip():
        # A default may have spaces; what follows "in" is a range.
        found = re.fullmatch(r"(\[?[A-Z]+\]?)(?:,\.\.\.)?(?::([^=]+?))?(?:=(.*)|(?<!\bin) \[([^][]*)\])?", rest)
        if found:
            option.value, option.check, option.default = found[1], found[2] or "", found[3] or found[4] or ""
        else:  # of a CLI11 to come
            option.value = re.match(r"\[?[A-Z]*\]?", rest)[0]
            option.notes.append(rest)
    return option


def indentation(line):
    return len(line) - len(line.lstrip())


def split(line, following):
    """The option's words and its description, which stands in the following line if the words are long."""
    if indentation(following) < CONTINUED and re.match(r".{%d} \S" % (COLUMN - 1), line) and "  " not in line[:COLUMN].strip():
        return line[:COLUMN].strip(), line[COLUMN:]
    words, _, said = re.sub(r"^(-\w,) +(--)", r"\1\2", line.strip()).partition("  ")
    return words, said


def parse(program, text):
    """The text of `program --help`."""
    before, body = re.split(r"^(?=[^\s:]+:$)", text, maxsplit=1, flags=re.MULTILINE)  # the first heading
    # CLI11's usage, and perhaps a better one at the beginning of the description.
    usages = [re.sub(r"^Usage: (\S*/)?", "", line) for line in before.splitlines() if line.startswith(("Usage: ", f"{program} "))]
    description = [line.strip() for line in before.splitlines() if line.strip() and not line.startswith(("Usage: ", f"{program} "))]
    help_ = Help(program, usages[0], " ".join(description), [], [])
    current = None
    lines = [*body.splitlines(), ""]
    for line, following in zip(lines, lines[1:]):
        if not line.strip():
            continue
        if heading := re.fullmatch(r"(\S.*):", line):
            current = [] if heading[1].lower() != "positionals" else help_.positionals
            if current is not help_.positionals:
                help_.groups.append((heading[1].capitalize() if heading[1].isupper() else heading[1], current))
            continue
        if indentation(line) < CONTINUED:
            words, line = split(line, following)
            current.append(parse_option(words))
        current[-1].text = f"{current[-1].text} {line.strip()}".strip()
    return help_


def help_of(program, path):
    said = subprocess.run([path, "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return parse(program, said)
