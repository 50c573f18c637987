"""The scorecard: what of the papers reproduces here, from runs that are kept."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import ResultsError
from harness.papers.items import PaperRun, count_verdicts
from harness.report.claims.bound import MARKS
from harness.report.papers import Paper
from harness.results.files import write_json
from harness.results.folder import RunFolder, move_home
from harness.validate.__main__ import validate
from joulefeed.table import Table, to_markdown

MOST_KB: Final = 150
"""Of a figure that is kept."""
_COLOURS: Final = 64
_KEPT: Final = ("claims.json", "config.yaml", "readers.json")


_HOST_NAME: Final = re.compile(r'("hostname": \{\s*"value": )"[^"]*"')


def keep(runs: Mapping[str, PaperRun], out: Path) -> None:
    """Copy rows, checks, claims, provenance and figures of runs into `out`, a folder an experiment.

    The user's home is `~` in them, and the host has no name. Raises ResultsError for a run that states something else
    than what its raw files contain.
    """
    for name, one in runs.items():
        differences = validate(one.run).differences
        if differences:
            raise ResultsError(
                f"{one.run.folder}: states something else than what its raw files contain: {differences[0]}; see "
                f"python -m harness.validate {one.run.folder}"
            )
        fresh = out / f".{name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        shutil.copyfile(one.run.epochs_parquet, fresh / one.run.epochs_parquet.name)
        for file in (*_KEPT, *(path.name for path in one.run.folder.glob("provenance*.json"))):
            if (one.run.folder / file).exists():
                text = (one.run.folder / file).read_text().replace(str(Path.home()), "~")
                (fresh / file).write_text(_HOST_NAME.sub(r"\1null", text))
        checks = json.loads(one.run.checks.read_text())
        pq.write_table(pa.Table.from_pylist(checks), fresh / "checks.parquet", compression="zstd")
        write_json(fresh / "run.json", dict(one.described))
        for figure in sorted((one.run.folder / "figures").glob("*.png")):
            _shrink(figure, fresh / figure.name)
        move_home(fresh, out / name)


def _shrink(figure: Path, target: Path) -> None:
    """Write a figure with few colours, and smaller until it has MOST_KB at most."""
    from PIL import Image

    with Image.open(figure) as image:
        picture = image.convert("RGB")
    while True:
        picture.quantize(_COLOURS).save(target, optimize=True)
        if target.stat().st_size <= 1000 * MOST_KB:
            return
        picture = picture.resize((round(0.85 * picture.width), round(0.85 * picture.height)), Image.Resampling.LANCZOS)


def find_kept(kept: Path) -> dict[str, PaperRun]:
    """Return the kept runs by experiment."""
    folders = (file.parent for file in sorted(kept.glob("*/run.json")))
    return {folder.name: PaperRun(RunFolder(folder)) for folder in folders if not folder.name.startswith(".")}


def count_kept(papers: Mapping[str, Paper], kept: Path) -> Counter[str]:
    """Return how many claims of the kept runs have each verdict."""
    used = {item.experiment for paper in papers.values() for item in paper.items}
    runs = find_kept(kept).items()
    return Counter(str(claim["verdict"]) for name, run in runs if name in used for claim in run.claims)


def make_scorecard(papers: Mapping[str, Paper], kept: Path) -> str:
    """Return the page: counts, then every claim of every item with its verdict, reason, date and commit."""
    runs = find_kept(kept)
    machines = "; ".join(dict.fromkeys(str(run.described["machine"]) for run in runs.values()))
    lines = [
        "# What of the papers reproduces here",
        "",
        f"Machine: {machines or 'none yet'}. Each claim comes from a run whose rows, checks, claims and provenance",
        "are in [benchmarks/results/papers](../benchmarks/results/papers). `python -m harness.papers score` writes",
        "this page.",
        "",
        _count(count_kept(papers, kept)),
        "",
    ]
    for name, paper in papers.items():
        lines += [f"## {paper.name}", "", f"{paper.citation}. `python -m harness.papers run --paper {name}`", ""]
        lines += _list_items(paper, runs)
    return "\n".join(lines).rstrip() + "\n"


def _count(counts: Mapping[str, int]) -> str:
    return to_markdown(Table(["verdict", "claims"], [[f"{MARKS[v][0]} {v}", str(counts[v])] for v in MARKS]))


def _list_items(paper: Paper, runs: Mapping[str, PaperRun]) -> Iterator[str]:
    for item in paper.items:
        run = runs.get(item.experiment)
        if not item.experiment or run is None:
            yield f"### {item.item}: {'absent' if not item.experiment else 'not run'}"
            yield ""
            yield f"{item.absent or f'`python -m harness +experiment={item.experiment}` has no kept run.'}"
            yield ""
            continue
        claims = run.claims_of(item.figure or item.experiment)
        date, commit, minutes = (run.described[key] for key in ("started_utc", "commit", "minutes"))
        yield f"### {item.item}: {count_verdicts(claims) or 'no claim'}"
        yield ""
        yield f"`python -m harness +experiment={item.experiment}`, {date[:10]}, commit {commit}, {minutes} min."
        yield ""
        picture = run.run.folder / f"{item.figure or item.experiment}.png"
        if picture.exists():
            yield f"![{item.item}](../benchmarks/results/papers/{run.run.folder.name}/{picture.name})"
            yield ""
        if claims:
            rows = [_write_claim(claim) for claim in claims]
            yield to_markdown(Table(("", "claim", "here", "paper", "why"), rows))
        yield ""


def _write_claim(claim: Mapping[str, Any]) -> list[str]:
    here = f"{claim['actual']}<br>{claim['span']}" if claim["span"] else claim["actual"]
    return [MARKS[claim["verdict"]][0], claim["claim"], here, claim["expected"], claim["reason"]]
