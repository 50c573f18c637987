"""Names of a package that are imported when they are asked for: torch, DALI and servers take seconds to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package (PEP 562): `modules` has the module below `loaders` of each name."""

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"loaders.{modules[name]}"), name)

    return find
