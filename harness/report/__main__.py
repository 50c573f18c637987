"""`python -m harness.report FOLDER`: draw a results folder again without measuring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.errors import BROKEN_FIGURE, HarnessError
from harness.report import print_report, read_report, render
from harness.system.disk import disk_errors
from harness.system.program import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, draw figures and report.html; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.report",
        description="Print the table of a results folder and draw its figures and report.html again, "
        "from the stored files.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("results/latest"),
        help="a run's folder, finished or not (default: %(default)s)",
    )
    folder = parser.parse_args(arguments).folder
    console, errors = Console(), Console(stderr=True, style="red", highlight=False, markup=False, soft_wrap=True)
    try:
        with disk_errors({"FOLDER": folder}):
            report = read_report(folder)
            print_report(report, console)
            rendered = render(report)
    except HarnessError as error:
        errors.print(f"error: {error}")
        return error.exit_status
    for path in rendered.files:
        console.print(path, style="dim", highlight=False, soft_wrap=True)
    for figure in rendered.broken:
        errors.print(f"error: {figure.text}")
    return BROKEN_FIGURE if rendered.broken else 0


if __name__ == "__main__":
    run_program(main)
