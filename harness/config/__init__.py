"""What an experiment asks for: the composed configuration as checked data."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["list_packaged"]


def list_packaged(group: str) -> dict[str, Path]:
    """Return the YAML files of a folder of `conf/`, by name."""
    return {path.stem: path for path in sorted(Path(str(files("conf") / group)).glob("*.yaml"))}
