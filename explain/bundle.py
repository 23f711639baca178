#!/usr/bin/env python3
"""explain/bundle.py WASM PAGE: puts the page together: the template, one style sheet, the modules, and rondo in WebAssembly.

Called by scripts/page. Modules import names from each other by relative paths, one import a line, and export declarations
(`export const`, `export function`, `export class`): nothing else, so that this needs no JavaScript tools. Links to the sources,
source("path", "a text of the line"), become line numbers here; a text that is gone from its file is an error. Nothing of the machine
that builds it gets into the page.
"""
import base64
import hashlib
import json
import os
import pathlib
import re
import sys
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent
MOST_BYTES = 2 << 20
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";$', re.M)
EXPORT = re.compile(r"^export (?:async )?(?:const|let|function\*?|class) (\w+)", re.M)
SOURCE = re.compile(r'\bsource\(\s*"((?:[^"\\]|\\.)+)",\s*"((?:[^"\\]|\\.)+)"')


class Fault(Exception):
    pass


def modules_of(entry):
    """The modules that `entry` needs, each after those that it imports."""
    ordered, open_ones = [], []

    def visit(path):
        if path in ordered:
            return
        if path in open_ones:
            raise Fault(f"{path.name} imports itself, through {', '.join(p.name for p in open_ones)}")
        open_ones.append(path)
        if not path.is_file():
            raise Fault(f"there is no module {path.relative_to(HERE)}")
        for _, target in IMPORT.findall(path.read_text(encoding="utf-8")):
            visit((path.parent / target).resolve())
        open_ones.pop()
        ordered.append(path)

    visit(entry)
    return ordered


def variable_of(path):
    return "module_" + re.sub(r"\W", "_", str(path.relative_to(HERE / "page").with_suffix("")))


def wrapped(path):
    """The module as a function that is called at once and returns what it exports."""
    text = path.read_text(encoding="utf-8")
    exports = EXPORT.findall(text)
    text = IMPORT.sub(lambda m: f"const {{{m[1].replace(' as ', ': ')}}} = {variable_of((path.parent / m[2]).resolve())};", text)
    text = re.sub(r"^export (?=(?:async )?(?:const|let|function|class)\b)", "", text, flags=re.M)
    if left := re.search(r"^\s*(?:import|export)\b.*", text, re.M):
        raise Fault(f"{path.relative_to(HERE)}: '{left[0].strip()}' is not a form that explain/bundle.py knows")
    return f"const {variable_of(path)} = (() => {{\n{text}\nreturn {{{', '.join(exports)}}};\n}})();\n"


def line_of(path, text, where):
    file = TREE / path
    if not file.is_file():
        raise Fault(f"{where}: there is no file {path}")
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if text in line:
            return number
    raise Fault(f"{where}: no line of {path} has the text '{text}' any more")


def source_lines(modules):
    """{"path|text": line} of every source() in the modules."""
    lines = {}
    for module in modules:
        for path, text in SOURCE.findall(module.read_text(encoding="utf-8")):
            text = json.loads(f'"{text}"')
            lines[f"{path}|{text}"] = line_of(path, text, module.relative_to(HERE))
    return lines


def version():
    header = (TREE / "include/rondo/rondo.h").read_text(encoding="utf-8")
    return re.search(r'^#define RONDO_VERSION "([^"]+)"', header, re.M)[1]


def data_blocks():
    """What explain/page/data/ holds, as JSON blocks that the page reads by name. As text, `<` cannot end a script."""
    blocks = []
    for file in sorted((HERE / "page/data").glob("*.json")):
        data = json.dumps(json.loads(file.read_text(encoding="utf-8")), separators=(",", ":"), ensure_ascii=True)
        blocks.append(f'<script type="application/json" id="data-{file.stem}">{data.replace("<", chr(92) + "u003c")}</script>')
    return "\n".join(blocks)


def tree_address():
    """Where links to sources begin: RONDO_SOURCES, the address of a tree on the web that shows lines, else the tree that the page lies in."""
    address = os.environ.get("RONDO_SOURCES", "")
    if address and not re.fullmatch(r"https?://[^\s\"'<>&?#]+/", address):
        raise Fault(f"RONDO_SOURCES is '{address}': give the address of a tree that ends with a slash, such as https://HOST/rondo/blob/main/")
    sentence = ("File names lead to the sources on the web." if address else
                "File names lead to the sources, if this page lies in <code>build/</code> of a checkout. A browser opens a file at its beginning: "
                "the number after the name is the line.")
    return address or "../", sentence


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def bundle(wasm):
    page = HERE / "page"
    modules = modules_of((page / "main.js").resolve())
    script = '"use strict";\n' + "".join(wrapped(m) for m in modules)
    lines = json.dumps(source_lines(modules), sort_keys=True)
    tree, sources = tree_address()
    script = script.replace('"SOURCE_LINES"', lines).replace('"SOURCE_TREE"', json.dumps(tree)).replace('"PAGE_VERSION"', json.dumps(version()))
    if "</script" in script.lower():
        raise Fault("a module contains '</script', which would end the script")
    style = "\n" + (page / "style.css").read_text(encoding="utf-8")
    script = "\n" + script
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeezed.compress(wasm) + squeezed.flush()
    parts = {
        "SCRIPT_HASH": hash_of(script),
        "STYLE_HASH": hash_of(style),
        "STYLE": style,
        "SCRIPT": script,
        "WASM": base64.b64encode(packed).decode(),
        "DATA": data_blocks(),
        "VERSION": version(),
        "SOURCES": sources,
    }
    template = (page / "index.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], template), len(packed)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wasm = pathlib.Path(sys.argv[1]).read_bytes()
    try:
        text, packed = bundle(wasm)
    except Fault as fault:
        sys.exit(f"page: {fault}")
    data = text.encode()
    if len(data) > MOST_BYTES:
        sys.exit(f"page: {len(data)} bytes, and at most {MOST_BYTES} are allowed")
    target = pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    print(f"page: {target}, {len(data)} bytes, of which rondo {len(wasm)} ({packed} compressed)")


if __name__ == "__main__":
    main()
