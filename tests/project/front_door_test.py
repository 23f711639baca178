#!/usr/bin/env python3
"""front_door_test.py SOURCE: Dockerfile, the development container and GitHub's workflow do what README's commands do, as far as it
shows without Docker: their files and scripts exist, the first layer's set-up runs with no more than what was copied before it
(apt-get is a stand-in), and they name one system. The links of all pages lead to files and headings that exist."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from common import check  # pylint: disable=wrong-import-position
from setup_test import Machine  # pylint: disable=wrong-import-position


def stages_of(dockerfile):
    """name -> (what it is from, instructions as (word, rest))"""
    stages = {}
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            stages[name] = (image, [])
            current = stages[name][1]
        elif word and word != "#":
            current.append((word, rest))
    return stages


def copied(source, instructions):
    """The files under source that these COPY instructions take, beside where they are put."""
    for word, rest in instructions:
        if word == "COPY":
            *sources, target = rest.split()
            for name in sources:
                check((source / name).exists(), f"Dockerfile copies {name}, which does not exist")
                yield source / name, pathlib.Path(target) / (source / name).name if target.endswith("/") else pathlib.Path(target)


def check_setup_layer(source, instructions, work):
    machine = Machine(source, work)
    _, _, _, wanted = (machine.has_apt(""), machine.run("setup"))[1]
    shutil.rmtree(machine.tree)
    for file, target in copied(source, instructions):
        (machine.tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, machine.tree / target)
    machine.stand_in("rm", "true")
    machine.calls.write_text("")
    for command in (rest for word, rest in instructions if word == "RUN"):
        done = subprocess.run(["bash", "-ec", command], cwd=machine.tree, env={"PATH": str(machine.bin), "HOME": "/"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        check(done.returncode == 0, f"Dockerfile: {command} gave {done.returncode}:\n{done.stdout}")
    installed = re.search(r"^install -y \S+ (.*)$", machine.calls.read_text(), re.MULTILINE)
    check(installed, "Dockerfile's first layer installs nothing")
    installed = set(installed[1].split())
    check(installed == wanted, f"Dockerfile installs others than scripts/setup: {installed ^ wanted}")


def check_containers(source):
    stages = stages_of(source / "Dockerfile")
    system = stages["machine"][0]
    for name, (image, instructions) in stages.items():
        check(image in stages or image == system, f"Dockerfile: stage '{name}' is from {image}")
        list(copied(source, instructions))
    readme = (source / "README.md").read_text(encoding="utf-8")
    promised = re.findall(r"^(scripts/\w+)  ", readme[readme.index("```sh"):], re.MULTILINE)[:2]
    run = [rest for name in ("demo", "test") for word, rest in stages[name][1] if word == "RUN"]
    check(len(promised) == 2 and run == promised, f"README has {promised}, Dockerfile runs {run}")
    check(all(os.access(source / command, os.X_OK) for command in run), f"not all of {run} can be executed")
    with tempfile.TemporaryDirectory() as work:
        check_setup_layer(source, stages["machine"][1], pathlib.Path(work))

    folder = source / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    build = container["build"]
    check((folder / build["dockerfile"]).is_file() and (folder / build["context"]).resolve() == source.resolve(), f"{build} does not lead to Dockerfile")
    check(build["target"] in stages, f"Dockerfile has no stage {build['target']}")
    check(container["postCreateCommand"] == "scripts/setup lint", "the development container lacks the formatters")

    workflow = (source / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    steps = re.findall(r"^ +- run: (.+)$", workflow, re.MULTILINE)
    check(steps and steps[-1] == "bash .ci/run" and (source / ".ci/run").is_file(), f"GitHub's workflow ends with {steps[-1:]}")
    check(f"container: {system}\n" in workflow, f"GitHub's workflow has another system than {system}")


def anchors_of(page):
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(source):
    names = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard", "*.md"], stdout=subprocess.PIPE, text=True, check=False)
    pages = [source / name for name in names.stdout.split("\n") if name] or [
        path for path in source.rglob("*.md")
        if not any(part == "build" or part.startswith(".") for part in path.relative_to(source).parts)]
    check({"README.md", "CONTRIBUTING.md", "SECURITY.md"} <= {page.name for page in pages}, f"only these pages: {pages}")
    count = 0
    for page in filter(pathlib.Path.is_file, pages):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)", prose):
            to = page.parent / target if target else page
            check(to.exists(), f"{page.relative_to(source)} links to {target}, which does not exist")
            check(not anchor or anchor in anchors_of(to), f"{page.relative_to(source)} links to {target}#{anchor}: no such heading")
            count += 1
    print(f"{len(pages)} pages, {count} links")


def main():
    source = pathlib.Path(sys.argv[1])
    check_containers(source)
    check_links(source)


if __name__ == "__main__":
    main()
