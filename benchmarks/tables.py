"""Writes the measured tables of the README and the docs from the raw runs in results/.

A page has a pair of markers where a table belongs, and all that is between them is generated:

    <!-- measured: NAME PART PART -->    the lines of a benchmark's parts; without parts, of all
    <!-- printed: NAME PART -->          what a program printed that the benchmark ran
    <!-- explained: NAME PART -->        where that was measured, and what its medians leave out
    <!-- end -->

`python benchmarks/tables.py` writes the pages; `--check` writes nothing, and exits 1 where a page differs from the raw
runs. A part with a full run shows that one, else its quick one, and else that it is not measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from raw_runs import RESULTS, Part, load_parts
from start_up import write_start_up

REPO: Final = Path(__file__).resolve().parents[1]
MARKED: Final = re.compile(r"(<!-- (measured|printed|explained): ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    check, different = parser.parse_args(arguments).check, False
    for page in find_pages(REPO):
        text = page.read_text()
        generated = generate(text, RESULTS)
        if text == generated:
            continue
        different = True
        print(f"{page.relative_to(REPO)}: {'differs from the raw runs' if check else 'written'}")
        if not check:
            page.write_text(generated)
    return 1 if check and different else 0


def find_pages(repo: Path) -> list[Path]:
    """Return the pages with markers."""
    pages = [repo / "README.md", repo / "benchmarks" / "README.md", *sorted((repo / "docs").glob("*.md"))]
    return [page for page in pages if MARKED.search(page.read_text())]


def generate(text: str, results: Path) -> str:
    """Return a page whose marked blocks are made from the raw runs. Raises ValueError for a wrong marker."""

    def block(found: re.Match[str]) -> str:
        name, *wanted = found[3].split()
        parts = load_parts(results, name)
        if unknown := [each for each in wanted if parts and each not in parts]:
            raise ValueError(f"{found[1].strip()}: {name} has no part {unknown[0]!r}: expected one of {list(parts)}")
        chosen = {each: parts.get(each) for each in wanted or parts or [name]}
        write = {"measured": write_tables, "printed": write_printed, "explained": write_explained}
        lines = write[found[2]](chosen)
        return "\n".join((found[1], *lines, "", found[5]))

    return MARKED.sub(block, text)


def write_tables(parts: dict[str, Part | None]) -> Iterator[str]:
    """Return Markdown: a table for each run of parts that were measured together."""
    for number, (where, each) in enumerate(groupby(parts.items(), lambda item: _where(item[1]))):
        together = list(each)
        yield from [""] * bool(number)
        if where is None:
            yield f"{_list([name for name, _ in together])}: no raw run is kept."
            continue
        minutes = sum(part["seconds"] for _, part in together if part) / 60
        took = f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
        yield f"{where}, {took}, {_load([part for _, part in together if part])}."
        yield ""
        yield from ("| demand | asked | measured | verdict |", "|---|---|---|---|")
        for line in (line for _, part in together if part for line in part["lines"] if "text" not in line["raw"]):
            unclear = "inconclusive" if line["asked"] else ""
            verdict = {None: unclear, True: "met", False: "**falls short**"}[line["met"]]
            yield _row(line["what"], line["asked"], line["measured"], verdict)


def write_printed(parts: dict[str, Part | None]) -> Iterator[str]:
    """Return Markdown: the printed text, where it was measured; after medians and claims, the rest is folded."""
    for name, part in parts.items():
        if line := _printed_by(part):
            shown, folded = _divide(line["raw"]["text"])
            yield from ("```", *shown, "```")
            if folded:
                title = "The rest of what it prints: costs, joules by part, warnings, and what to know of the run"
                yield from ("", "<details>", f"<summary>{title}</summary>", "", "```", *folded, "```", "", "</details>")
        else:
            yield f"{name}: no raw run is kept."


def _divide(text: str) -> tuple[list[str], list[str]]:
    """Return the lines up to the legend of the medians with those of the claims, and the other ones."""
    shown: list[str] = []
    folded: list[str] = []
    into = shown
    for paragraph in text.strip("\n").split("\n\n"):
        if "claims of the paper" in paragraph or paragraph.startswith("Not as planned"):
            into = folded if paragraph.startswith("Not as planned") else shown
        into += [*([""] if into else []), *paragraph.splitlines()]
        into = folded if "Medians per" in paragraph else into
    return shown, folded


def write_explained(parts: dict[str, Part | None]) -> Iterator[str]:
    """Return Markdown: where the printed text was measured, and the start-up where the run's epochs are kept."""
    for name, part in parts.items():
        line = _printed_by(part)
        if part is None or line is None:
            yield f"{name}: no raw run is kept."
            continue
        yield f"{_where(part)}, {_load([part])}."
        if "epochs" in line["raw"]:
            yield from ("", *write_start_up(line["raw"]["epochs"], part["lines"]))


def _printed_by(part: Part | None) -> dict[str, Any] | None:
    """Return the line of a benchmark that keeps what a program printed; None where there is none."""
    return next((line for line in part["lines"] if "text" in line["raw"]), None) if part else None


def _where(part: Part | None) -> str | None:
    """Return when, on what and with what a part was measured; None without a run."""
    if part is None:
        return None
    machine: dict[str, Any] = part["machine"]
    kind = "a machine" if machine["virtual"] in ("no", "none") else "a virtual machine"
    run = f"{part['date_utc'][:10]}, commit {part['commit']}{', `--quick`' if part['quick'] else ''}"
    cores = f"{machine['logical_cpus']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB"
    return f"{run}, {kind} of {cores}, Linux {machine['kernel']}, {', '.join(machine.get('gpus', ['no GPU']))}"


def _load(parts: Sequence[Part]) -> str:
    """Return the machine's load average over a minute when each part began, least and most."""
    least, most = (f"{choose(part['load'] for part in parts):.1f}" for choose in (min, max))
    return f"load {least} before it" if least == most else f"load {least} to {most} before its parts"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.exit(main())
