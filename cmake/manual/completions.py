"""Completion of a program's flags and values in bash and zsh."""
import re


def function_of(program):
    return "_" + program.replace("-", "_")


# After the flags comes a command of its own: its name, then what its own completion says.
BASH_PROGRAM = """\
  local i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --) ((++i)); break ;;
      VALUED) if [[ ${COMP_WORDS[i + 1]} == = ]]; then ((i += 2)); else ((++i)); fi ;;
      -*) ;;
      *) break ;;
    esac
  done
  if ((i == COMP_CWORD)) && [[ $cur != -* && $cur != = ]]; then
    mapfile -t COMPREPLY < <(compgen -c -f -- "$cur" | sort -u)
    return
  elif ((i < COMP_CWORD)); then
    if declare -F _command_offset >/dev/null; then
      _command_offset "$i"
    else
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
    return
  fi
"""
BASH_FILES = """\
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
        return
"""


def bash(help_, aliases):
    """aliases: further names of the program, which take no positional argument."""
    options = help_.options()
    lines = [f"# Completion for {help_.program}, made from its --help.", f"{function_of(help_.program)}() {{",
             "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}",
             "  # --flag=value is three words here",
             "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi",
             "  COMPREPLY=()"]
    if help_.runs_a_program():
        valued = "|".join(name for option in options if option.value for name in option.names)
        lines += [BASH_PROGRAM.replace("VALUED", valued).rstrip("\n")]
    lines += ["  if [[ $cur != -* ]]; then", "    case $prev in"]
    for option in options:
        if not option.value or option.value.startswith("[") and not option.is_path():
            continue
        lines.append(f"      {'|'.join(option.names)})")
        if option.choices():
            lines.append(f"        mapfile -t COMPREPLY < <(compgen -W '{' '.join(option.choices())}' -- \"$cur\")")
        if option.is_path() and not option.choices():
            lines.append(BASH_FILES.rstrip("\n"))
        else:
            lines.append("        return")
        lines.append("        ;;")
    lines += ["    esac"]
    for positional in help_.positionals:
        if positional.choices():
            only = f"[[ ${{1##*/}} == {help_.program} ]] && " if aliases else ""
            lines.append(f"    {only}mapfile -t COMPREPLY < <(compgen -W '{' '.join(positional.choices())}' -- \"$cur\")")
    flags = " ".join(name for option in options for name in option.names)
    lines += ["    return", "  fi", f"  mapfile -t COMPREPLY < <(compgen -W '{flags}' -- \"$cur\")", "}",
              f"complete -F {function_of(help_.program)} {' '.join([help_.program, *aliases])}"]
    return "\n".join(lines) + "\n"


def zsh_value(option):
    name = re.sub(r"\W", " ", option.value.strip("[]")).lower()
    if option.choices():
        return f":{name}:({' '.join(option.choices())})"
    if option.is_path():
        return f":{name}:_files"
    return f":{name}: "


def zsh_option(option):
    said = re.sub(r"([\\\[\]])", r"\\\1", option.text).replace("'", "'\\''")
    names = [name + ("=" if option.value and name.startswith("--") else "") for name in option.names]
    value = ""
    if option.value:
        value = (":" if option.value.startswith("[") else "") + zsh_value(option)
    spelled = f"'{names[0]}" if len(names) == 1 else f"'({' '.join(option.names)})'{{{','.join(names)}}}'"
    return f"{spelled}[{said}]{value}'"


def zsh(help_, aliases):
    specs = [zsh_option(option) for option in help_.options()]
    if help_.runs_a_program():
        specs += ["'(-):program:_command_names -e'", "'*::arguments:_normal'"]
    lines = [f"#compdef {' '.join([help_.program, *aliases])}", f"# Made from {help_.program} --help.", "local -a specs=(",
             *(f"  {spec}" for spec in specs), ")"]
    if help_.positionals:
        only = f"[[ $service == {help_.program} ]] && " if aliases else ""
        words = " ".join(f"'{number}{zsh_value(positional)}'" for number, positional in enumerate(help_.positionals, 1))
        lines.append(f"{only}specs+=({words})")
    return "\n".join(lines) + "\n_arguments -s -S $specs\n"
