#!/usr/bin/env python3
"""manual_test.py SOURCE MANUAL PROGRAM...: the pages and completions in MANUAL, made by cmake/manual. A page has its sections and
every flag of --help, and groff (mandoc) finds no fault in it; bash completes flags, values and programs; zsh reads its files."""
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from common import check

SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO")
TYPES = {"float", "double", "half", "bfloat16", "int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool",
         "f8e4m3", "f8e5m2"}
# Words so far, the last of them unfinished -> what bash is to offer, exactly.
COMPLETED = {
    ("rondo-perf", "--algor"): {"--algorithm"},
    ("rondo-perf", "--algorithm", "two"): {"two-shot", "two-shot-direct"},
    ("rondo-perf", "--memory", "=", "l"): {"library"},
    ("rondo-perf", "--memory", "="): {"library", "plain"},
    ("rondo-perf", "-d", ""): TYPES | {"all"},
    ("rondo-perf", "all_r"): {"all_reduce"},
    ("rondo-perf", "-b", ""): set(),  # a size
    ("rondo-perf", "--json", "/etc/host"): {"/etc/hosts"},
    ("all_reduce_perf", "-o", "mu"): {"mulsum"},
    ("all_reduce_perf", "all_r"): set(),
    ("rondo-plan", "-d", "f8"): {"f8e4m3", "f8e5m2"},
    ("rondo-train", "--model", ""): {"mlp", "cnn", "gpt"},
    ("rondo-train", "--compress", "b"): {"bf16"},
    ("rondo-train", "--optimizer", ""): {"sgd", "adamw"},
    ("rondo-train", "--data", "/etc/host"): {"/etc/hosts"},
    ("rondo-train", "--lr-d"): {"--lr-decay"},
    ("rondo-run", "-n", "2", "--bi"): {"--bind"},
    ("rondo-run", "-n", "2", "--bind", "=", "s"): {"share"},
    ("rondo-run", "-n", "2", "--", "/bin/ech"): {"/bin/echo"},
    ("rondo-run", "-n", "2", "/bin/echo", "--bi"): set(),  # a flag of echo's
    ("rondo-status", "--js"): {"--json"},
}


def run(*command, **more):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                          check=False, **more)


def check_page(manual, program):
    page = manual / f"man1/{program.name}.1"
    text = page.read_text(encoding="utf-8")
    sections = re.findall(r'^\.SH "?([^"\n]+)"?$', text, re.MULTILINE)
    wanted = [section for section in SECTIONS if section != "EXAMPLES" or not program.name.startswith("rondo-perf-")]
    missing = [section for section in wanted if section not in sections]
    check(not missing, f"{page} lacks {missing}")
    check(re.search(rf"^\.SH NAME\n{program.name} \\- \S", text, re.MULTILINE), f"{page}: NAME is not as whatis reads it")
    flags = re.findall(r"^ +(-[\w,-]+)", run(program, "--help").stdout, re.MULTILINE)
    check("-h,--help" in flags, f"{program} --help has no --help")
    plain = text.replace("\\-", "-")
    for flag in (name for names in flags for name in names.split(",")):
        check(f"\\fB{flag}\\fR" in plain, f"{page} lacks {flag}")
    for checker in (("groff", "-man", "-ww", "-z", "-Tutf8"), ("mandoc", "-Tlint", "-Wwarning")):
        if shutil.which(checker[0]):
            said = run(*checker, page)
            check(said.returncode == 0 and not said.stdout, f"{shlex.join(checker)} {page}:\n{said.stdout}")


def check_bash(manual):
    script = ["set -u"]
    for words in COMPLETED:
        name = words[0]
        script += [f"complete -r; . {shlex.quote(str(manual / 'bash' / name))}", f"read -ra said < <(complete -p {name}) || exit",
                   f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()",
                   # complete -F FUNCTION NAME
                   f'"${{said[2]}}" {name} "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"', 'echo "${COMPREPLY[*]-}"']
    said = run("bash", "--norc", "-c", "\n".join(script))
    check(said.returncode == 0 and said.stdout.count("\n") == len(COMPLETED), f"bash gave {said.returncode}:\n{said.stdout}")
    for (words, wanted), offered in zip(COMPLETED.items(), said.stdout.split("\n")):
        offered = set(offered.split())
        files = words[-1].startswith("/")  # the folder may have others
        check(wanted <= offered if files else wanted == offered, f"bash completes {words} to {offered}, not to {wanted}")


def check_parser(source):
    sys.path.insert(0, str(source / "cmake/manual"))
    sys.dont_write_bytecode = True
    import help_text  # pylint: disable=import-outside-toplevel
    of_cli11_2_7 = """Does it. And more.


prog [OPTIONS] FILE


POSITIONALS:
  FILE TEXT REQUIRED          the input

OPTIONS:
  -h,     --help              Print this help message and exit
          --kind TEXT:{a,b} [a]  
                              which kind:
                              a or b
          --each INT,... ...
                              number
          --some-flag WORD:MORE the form of another day
"""
    of_types = """Does it.
Usage: prog [OPTIONS]

Options:
  --where TEXT:cpu|cuda|cuda:N,...=cpu
                              Place
  --how TEXT:sgd|adamw=gpt adamw, else sgd
                              Rule
  --rate FLOAT:in [0, 1e+06)=sgd 0.02, adamw 0.001
                              Rate
  --cap FLOAT:auto or in [0, 10) [25]
                              Cap
  --data TEXT=rondo's licence Input
  --new FLOAT:in [0, 1) [sgd 0.5, else 0]
                              Newer
  --count INT:INT in [1 - 64] [4]
                              Count
  --free INT:INT in [1 - 64]  Free
"""
    said = [option.sentences() for option in help_text.parse("prog", of_types).options()]
    wanted = ["Place. One of: cpu, cuda, cuda:N,... Default: cpu.", "Rule. One of: sgd, adamw. Default: gpt adamw, else sgd.",
              "Rate. A number in [0, 1e+06). Default: sgd 0.02, adamw 0.001.",
              "Cap. Accepted: auto or a number in [0, 10). Default: 25.", "Input. Default: rondo's licence.",
              "Newer. A number in [0, 1). Default: sgd 0.5, else 0.", "Count. From 1 to 64. Default: 4.", "Free. From 1 to 64."]
    check(said == wanted, f"said is {said}")
    help_ = help_text.parse("prog", of_cli11_2_7)
    check([option.names for option in help_.options()] == [["-h", "--help"], ["--kind"], ["--each"], ["--some-flag"]], f"read as {help_}")
    check((help_.synopsis, help_.description) == ("prog [OPTIONS] FILE", "Does it. And more."), f"read as {help_}")
    check((help_.options()[2].value, help_.options()[2].text) == ("INT", "number"), f"read as {help_.options()[2]}")
    kind = help_.options()[1]
    check((kind.default, kind.choices(), kind.text) == ("a", ["a", "b"], "which kind: a or b"), f"read as {kind}")
    check(help_.positionals[0].notes == ["Required"] and help_.positionals[0].text == "the input", f"read as {help_.positionals}")
    # Words that fill CLI11's column are followed by one space.
    filled = help_text.split("  -S,--report_timestamps TEXT rows have none; accepted: 0", "")
    check(filled == ("-S,--report_timestamps TEXT", "rows have none; accepted: 0"), f"split into {filled}")
    whole = "-f,--stepfactor UINT:UINT in [2 - 1048576]"
    check(help_text.split(f"  {whole}", " " * 30 + "multiply")[0] == whole, "a long line of words is cut")


def main():
    source, manual, *programs = (pathlib.Path(path) for path in sys.argv[1:])
    check_parser(source)
    for program in programs:
        check_page(manual, program)
    check_bash(manual)
    if shutil.which("zsh"):
        for program in programs:
            said = run("zsh", "-n", manual / f"zsh/_{program.name}")
            check(said.returncode == 0, f"zsh -n: {said.stdout}")
    print(f"{len(programs)} programs, {len(COMPLETED)} completions")


if __name__ == "__main__":
    main()
