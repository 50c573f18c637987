"""Runs of one experiment over time: a figure, and the CSV file and configuration that Apache Otava reads."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path

import yaml

from harness.compare.sides import Key, Side
from harness.errors import ResultsError
from harness.report.labels import spell
from harness.results.files import write_whole


def write_history(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write history.csv, otava.yaml and history.png into a folder; returns their paths. Raises ResultsError.

    `otava analyze joulefeed` there finds the runs at which a row changed (otava.apache.org).
    """
    sides = sorted((Side.read([folder]) for folder in folders), key=lambda side: side.runs[0].started_utc)
    keys = list(dict.fromkeys(key for side in sides for key in side.keys))
    points = [side.medians() for side in sides]
    if len(points) < 2:
        raise ResultsError("--history: one folder has no history; expected two or more")
    out.mkdir(parents=True, exist_ok=True)
    text = StringIO()
    writer = csv.writer(text)
    columns = [_column(key) for key in keys]
    writer.writerow(["time", "commit", "folder", *columns])
    for side, point in zip(sides, points, strict=True):
        run = side.runs[0]
        commit = side.facts["subject"].get("code.commit") or side.facts["subject"].get("code.code_sha256", "")
        writer.writerow([run.started_utc, commit, run.folder.name, *(point.get(key, "") for key in keys)])
    described = {
        "type": "csv",
        "file": "history.csv",
        "time_column": "time",
        "attributes": ["commit", "folder"],
        "metrics": {name: {"column": name, "direction": -1} for name in columns},
    }
    written = [out / "history.csv", out / "otava.yaml", out / "history.png"]
    write_whole(written[0], text.getvalue().encode())
    write_whole(written[1], yaml.safe_dump({"tests": {"joulefeed": described}}, sort_keys=False).encode())
    _draw(sides, keys, points, written[2])
    return written


def _column(key: Key) -> str:
    return f"{key.workload}_{key.regime}_{key.loader}_s"


def _draw(sides: Sequence[Side], keys: Sequence[Key], points: Sequence[dict[Key, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    from harness.report.figures.style import choose_colour, use_house_style

    with use_house_style(path.stem):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        times = [datetime.fromisoformat(side.runs[0].started_utc) for side in sides]
        for key in keys:
            known = [(at, point[key]) for at, point in zip(times, points, strict=True) if key in point]
            label = f"{spell(key.loader)}, {spell(key.workload)}, {key.regime}"
            axes.plot(*zip(*known, strict=True), "o-", label=label, color=choose_colour(key.loader))
        axes.set_yscale("log")
        axes.set_ylabel("seconds an epoch")
        axes.tick_params(axis="x", rotation=30)
        figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(path, dpi=150)
