"""The house as docs/architecture.md draws it: few rooms, imports in one direction, no circle, no name twice, no growth.

`python tests/test_architecture.py` prints the drawings, and `python tests/sizes.py` the sizes.
"""

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests import sizes

ROOT = Path(__file__).parents[1]
PACKAGES = ("joulefeed", "energymon", "loaders", "harness", "loaders/sample_aware")
LOWER = {
    "joulefeed": set(),
    "energymon": {"joulefeed"},
    "loaders": {"joulefeed"},
    "harness": {"joulefeed", "energymon", "loaders"},
}
"""The packages that each package may import."""
EDGES = {
    "energymon/agent/main.py": {"energymon.influx.settings"},
    "energymon/cli/export.py": {"energymon.influx.lineprotocol"},
}
"""Leaves that a file of the core imports all the same: options name a server, an export has its format."""
PARALLEL = {"DaemonOptions"}
"""Classes that several modules have on purpose, because code finds them there by this name."""


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for package in LOWER for path in sorted((ROOT / package).rglob("*.py"))}


@cache
def parsed(module):
    return ast.parse(MODULES[module].read_text())


@cache
def imported(module):
    """Return the modules that a module imports, its functions included, not for annotations alone."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(
                name if (name := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            )
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                visit(child)

    visit(parsed(module))
    return {name for name in found if name in MODULES and name != module}


def rooms(package):
    """Return the rooms of a package, each with the rooms that it imports; a room is a folder or a module of its own.

    Commands (`__main__`) stand above the rooms.
    """
    prefix = package.replace("/", ".") + "."
    edges = defaultdict(set)
    for module in MODULES:
        if not module.startswith(prefix) or module.endswith(".__main__"):
            continue
        room = module.removeprefix(prefix).split(".")[0]
        edges[room] |= {
            other.removeprefix(prefix).split(".")[0] for other in imported(module) if other.startswith(prefix)
        } - {room}
    return {room: others for room, others in edges.items() if room != "__main__"}


def reduced(edges):
    """Return the edges that no path over other rooms replaces."""

    def reach(room):
        return edges.get(room, set()).union(*(reach(other) for other in edges.get(room, ())))

    return {room: {o for o in others if not any(o in reach(x) for x in others - {o})} for room, others in edges.items()}


def drawing(package):
    lines = [
        f"  {room} --> {' & '.join(sorted(others))}"
        for room, others in sorted(reduced(rooms(package)).items())
        if others
    ]
    return "\n".join(["graph TD", *lines])


def circle(edges):
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_no_module_imports_itself_by_a_detour():
    assert circle({module: imported(module) for module in MODULES}) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_imports_itself_by_a_detour(package):
    assert circle(rooms(package)) is None


@pytest.mark.parametrize("package", LOWER)
def test_no_package_imports_a_higher_one(package):
    for module in MODULES:
        if module.split(".")[0] == package:
            others = {name.split(".")[0] for name in imported(module)} - {package}
            assert others <= LOWER[package], f"{module} imports {others - LOWER[package]}"


def test_a_folder_has_few_entries():
    assert {folder: names for folder, names in sizes.listings().items() if len(names) > sizes.MAX_ENTRIES} == {}


@pytest.mark.parametrize("part", sizes.MAX_LINES)
def test_a_part_has_no_more_lines_than_it_may(part):
    assert sizes.count()[part] <= sizes.MAX_LINES[part], "python tests/sizes.py prints what has how many"


def test_the_core_imports_no_leaf():
    found = defaultdict(set)
    for module, path in MODULES.items():
        file = str(path.relative_to(ROOT))
        if not sizes.is_leaf(file) and path.name != "__main__.py":
            leaves = {name for name in imported(module) if sizes.is_leaf(str(MODULES[name].relative_to(ROOT)))}
            if leaves - EDGES.get(file, set()):
                found[file] = leaves
    assert found == {}


def test_a_class_name_is_there_once():
    found = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1 and name not in PARALLEL} == {}


@pytest.mark.parametrize("package", ["harness", "energymon", "loaders/sample_aware"])
def test_the_drawing_shows_the_imports(package):
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawings = re.findall(r"```mermaid\n(.*?)\n```", page, re.DOTALL)
    assert drawing(package) in drawings, f"expected this drawing:\n{drawing(package)}"


SECTIONS = re.split(r"^## (.*)\n", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE)[1:]
WALKS = {
    name: text
    for name, text in zip(SECTIONS[::2], SECTIONS[1::2], strict=True)
    if name.startswith(("A sample", "A joule", "An experiment"))
}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_few_files_that_are_there(walk):
    files = re.findall(r"^\| \d+ \| `([\w/.]+)` ", WALKS[walk], re.MULTILINE)
    assert 10 < len(files) <= sizes.MAX_WALK
    assert len(set(files)) == len(files)
    modules = [module_of(ROOT / file) for file in files]
    assert [file for file, module in zip(files, modules, strict=True) if module not in MODULES] == []


if __name__ == "__main__":
    for name in sys.argv[1:] or ["harness", "energymon", "loaders/sample_aware"]:
        print(f"{name}:\n{drawing(name)}\n")
