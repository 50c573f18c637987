"""`python -m harness.compare A B [C ...]`: is B slower than A?"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from harness.compare.show import SidesCompared
from harness.compare.sides import KINDS, Side
from harness.compare.turns import Version, measure_in_turns
from harness.compare.verdicts import SAME_WITHIN, Gate
from harness.errors import HarnessError
from harness.results.files import write_whole
from harness.results.folder import RunFolder
from harness.system.disk import disk_errors
from harness.system.program import run_program

_SLOWER, _REFUSED, _UNDECIDED = 1, 2, 3
_GATE: Final = re.compile(r"(slower|more joules)(?: by)?(?: *> *(\d+(?:\.\d+)?) *%)?")
_DESCRIPTION: Final = """\
Compare results folders: the ratio of every loader's epoch, its interval, and one of four verdicts: slower, faster,
same, undecided.

  python -m harness.compare A B            is B slower than A?
  python -m harness.compare A1,A2 B1,B2    several runs of each
  python -m harness.compare A B C          B and C, each against A
  python -m harness.compare --run +experiment=smoke --turns 6 --baseline ../main
                                           measure two checkouts in turns, then compare them
  python -m harness.compare --run +experiment=smoke --candidate-with loaders.pytorch.num_workers=4
                                           the same checkout with another setting
  python -m harness.compare --history results/*_smoke --out history
                                           a figure over time, and the files for Apache Otava

exit status
  0 same or faster   1 slower   2 refused: the sides are not alike, or cannot be read   3 undecided
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; returns the exit status."""
    options = _parse(argv)
    errors = Console(stderr=True, style="red", highlight=False, markup=False, soft_wrap=True)
    try:
        with disk_errors({"--out": options.out}):
            if options.history:
                from harness.compare.history import write_history

                for path in write_history(options.history, options.out):
                    print(path)
                return 0
            return _compare(options, Console())
    except (HarnessError, OSError) as error:
        # Other statuses would be taken for verdicts.
        errors.print(f"error: {error}")
        return _REFUSED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m harness.compare", description=_DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("sides", nargs="*", metavar="FOLDER[,FOLDER]", help="a run's folder, or several joined by commas")
    add(
        "--same-within",
        type=float,
        default=100 * SAME_WITHIN,
        metavar="PERCENT",
        help="what counts as the same (%(default)g %%)",
    )
    add("--fail-if", default="slower", metavar="RULE", help="'slower by > 5 %%', 'more joules by > 5 %%' (%(default)s)")
    add(
        "--accept",
        nargs="+",
        default=[],
        choices=KINDS,
        metavar="KIND",
        help=f"compare though they differ: {', '.join(KINDS)}",
    )
    add("--markdown", metavar="FILE", help="write it for a pull request; - for stdout")
    add("--html", metavar="FILE", type=Path, help="write a page with a figure")
    add("--json", metavar="FILE", help="write bencher's metric format; - for stdout")
    add("--run", nargs="+", default=[], metavar="OVERRIDE", help="measure this experiment on both sides in turns")
    add(
        "--baseline",
        type=Path,
        default=Path(),
        metavar="CHECKOUT",
        help="of --run: the first side's checkout (this one)",
    )
    add(
        "--candidate",
        type=Path,
        default=Path(),
        metavar="CHECKOUT",
        help="of --run: the second side's checkout (this one)",
    )
    add("--baseline-with", nargs="+", default=[], metavar="OVERRIDE", help="of --run: overrides of the first side")
    add("--candidate-with", nargs="+", default=[], metavar="OVERRIDE", help="of --run: overrides of the second side")
    add("--turns", type=int, default=5, metavar="N", help="of --run: how often each side runs (%(default)s)")
    add("--history", nargs="+", type=Path, default=[], metavar="FOLDER", help="runs of one experiment, in any order")
    add(
        "--out",
        type=Path,
        default=Path("results/compare"),
        metavar="FOLDER",
        help="of --run and --history (%(default)s)",
    )
    options = parser.parse_args(argv)
    options.gate = _read_gate(options.fail_if, parser)
    measured = bool(options.run)
    if not options.history and (len(options.sides) < 2) != measured:
        parser.error("expected two or more folders, or --run with an experiment, or --history with folders")
    if len(options.sides) > 2 and any((options.markdown, options.html, options.json)):
        parser.error("--markdown, --html and --json are of two sides: expected two folders")
    for target in filter(None, (options.markdown, options.html, options.json)):
        if str(target) != "-" and not Path(target).absolute().parent.is_dir():
            parser.error(f"{target}: its folder is missing; make it before")
    if not 0 < options.same_within < 100:
        parser.error(f"--same-within {options.same_within:g}: expected per cent between 0 and 100")
    if options.turns < 2:
        parser.error(f"--turns {options.turns}: expected 2 or more, for one turn has no interval")
    return options


def _read_gate(text: str, parser: argparse.ArgumentParser) -> Gate:
    found = _GATE.fullmatch(text.strip())
    if found is None:
        parser.error(f"--fail-if {text!r}: expected 'slower', 'slower by > 5 %' or 'more joules by > 5 %'")
    return Gate(float(found[2] or 0) / 100, "joules" if found[1] == "more joules" else "seconds")


def _compare(options: argparse.Namespace, console: Console) -> int:
    if options.run:
        first = Version(options.baseline, options.baseline_with)
        second = Version(options.candidate, options.candidate_with)
        pair = measure_in_turns(first, second, options.run, options.turns, options.out)
        sides = [Side.read(folders, name) for folders, name in zip(pair, ("baseline", "candidate"), strict=True)]
    else:
        sides = [
            Side.read([RunFolder.find(one, Path("results")).folder for one in each.split(",")])
            for each in options.sides
        ]
    before, *others = sides
    outcomes = []
    for after in others:
        found = SidesCompared.of(before, after, same_within=options.same_within / 100, accepted=options.accept)
        _write(found, options, console)
        outcomes.append(options.gate.judge(found.rows, is_whole=not found.one_sided))
    return _SLOWER if "fails" in outcomes else _UNDECIDED if "undecided" in outcomes else 0


def _write(found: SidesCompared, options: argparse.Namespace, console: Console) -> None:
    if "-" not in (options.markdown, options.json):
        found.print(console)
    for target, text in (
        (options.markdown, found.to_markdown),
        (options.json, found.to_json),
        (options.html, found.to_html),
    ):
        if target == "-":
            sys.stdout.write(text())
        elif target is not None:
            write_whole(Path(target), text().encode())


if __name__ == "__main__":
    run_program(main)
