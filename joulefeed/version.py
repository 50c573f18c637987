"""The project's version, which stands once, in pyproject.toml; `--version` of every command prints it."""

from __future__ import annotations

import argparse
from typing import Any


def version_text() -> str:
    """Return the project's name and version."""
    from importlib.metadata import version

    return f"joulefeed {version('joulefeed')}"


class PrintVersion(argparse.Action):
    """The action of `--version`: prints the version and exits; reads it only then."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print joulefeed's version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and end the program."""
        print(version_text())
        parser.exit()
