"""Rooms of the loaders: what several loaders use is in loaders/shared, and private names of torch in one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import loaders

ROOT = Path(loaders.__file__).parent
LOADERS = ("dali", "mosaic", "nosql", "pecan", "pytorch", "sample_aware", "spdl", "streaming", "tfdata")
EXTENDED = {"pecan": "pytorch"}
"""Loaders that are made of another one."""
MODULES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("name", [*LOADERS, "shared"])
def test_a_loader_imports_no_other_loaders_package(name: str) -> None:
    foreign = [f"loaders.{other}" for other in LOADERS if other not in (name, EXTENDED.get(name))]
    for path in (each for each in MODULES if room(each) == name):
        for module in imported(path):
            assert not any(module == other or module.startswith(f"{other}.") for other in foreign), f"{path}: {module}"


def test_private_modules_of_torch_and_dali_are_imported_in_one_place() -> None:
    for path in MODULES:
        if path.name != "compat.py":
            private = [m for m in imported(path) if m.startswith(("torch.", "nvidia.")) and "._" in m]
            assert not private, f"{path}: {private}"
