"""The measured tables of README and docs are what the raw runs say, and the raw runs are whole."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import tables
from bench import REPO, Line, at_least, at_most, judge_ratios, run
from raw_runs import RESULTS, load_parts, save_part
from start_up import TURNS, write_start_up

PAGES = tables.find_pages(REPO)
RUNS = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_is_what_the_raw_runs_say(page: Path) -> None:
    text = page.read_text()
    assert tables.generate(text, RESULTS) == text, "run: python benchmarks/tables.py"


def test_every_measured_part_is_shown_on_a_page() -> None:
    shown = set()
    for page in PAGES:
        for _, _, marker, _, _ in tables.MARKED.findall(page.read_text()):
            name, *parts = marker.split()
            shown |= {(name, part) for part in parts or load_parts(RESULTS, name)}
    measured = {(path.name.split(".")[0], part) for path in RUNS for part in json.loads(path.read_text())["parts"]}
    assert measured <= shown


def test_the_page_of_benchmarks_has_no_table_that_is_typed() -> None:
    typed = tables.MARKED.sub("", (REPO / "benchmarks/README.md").read_text())
    assert not re.findall(r"^\|.*", typed, re.MULTILINE)
    assert not re.findall(r"\d\.\d", typed.replace("0.05 to 3 s", "").replace("every 0.1 s", ""))


@pytest.mark.parametrize("path", RUNS, ids=[path.name for path in RUNS])
def test_a_raw_run_has_its_machine_and_the_value_behind_each_verdict(path: Path) -> None:
    for name, part in json.loads(path.read_text())["parts"].items():
        assert part["date_utc"] and part["commit"] and part["machine"]["cpu"] and part["lines"], name
        for line in part["lines"]:
            asked = re.fullmatch(r"(<=|>=|>) ([\d.]+)(%?)", line["asked"])
            if asked is None:
                continue
            value, limit = line["raw"]["value"], float(asked[2]) / (100 if asked[3] else 1)
            assert line["met"] is None or line["met"] == (value <= limit if asked[1] == "<=" else value >= limit), line


def lines(value: float, *, ends: bool = True) -> Iterator[Line]:
    yield at_most("ours over theirs", 1.05, value, f"{value:.3f}", turns_s=[1.0, value])
    if not ends:
        raise KeyboardInterrupt
    yield at_least("goodput", None, 0.5, "0.5 | of 1")


def test_a_run_is_kept_part_by_part_and_a_part_that_is_interrupted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["some.py"])
    options = argparse.Namespace(results=tmp_path, quick=False, only=None, cache=Path("/somewhere"))
    assert run({"near": partial(lines, 1.01), "far": partial(lines, 1.2)}, options) == 1
    with pytest.raises(KeyboardInterrupt):
        run({"near": partial(lines, 2.0), "far": partial(lines, 3.0, ends=False)}, options)
    near, far = load_parts(tmp_path, "some").values()
    assert near and far
    assert [line["met"] for line in near["lines"]] == [False, None]
    assert [line["met"] for line in far["lines"]] == [False, None]
    assert far["lines"][0]["raw"] == {"value": 1.2, "turns_s": [1.0, 1.2]}
    assert "/somewhere" not in (tmp_path / "some.json").read_text()
    page = "<!-- measured: some far -->\n<!-- end -->"
    assert "| ours over theirs | <= 1.05 | 1.200 | **falls short** |" in tables.generate(page, tmp_path)
    assert "0.5 \\| of 1" in tables.generate(page, tmp_path)


def part(quick: bool, text: str) -> dict[str, object]:
    machine = {"cpu": "Some CPU", "logical_cpus": 2, "memory_gib": 4, "kernel": "6.1", "virtual": "no"}
    line = {"what": text, "asked": "", "measured": text, "met": None, "raw": {}}
    facts = {"date_utc": "2026-01-31T00:00:00+00:00", "commit": "abc", "seconds": 1.0, "load": 2.5 if quick else 0.1}
    return {**facts, "quick": quick, "machine": machine, "lines": [line]}


@pytest.mark.parametrize(
    ("far_s", "said", "ratios", "verdict"),
    [
        (2.08, "4.0 % longer", (1.02, 1.02, 1.03, 1.03), "so it holds here"),
        (2.12, "6.0 % longer", (1.02, 1.02, 1.09, 1.09), "so whether it holds here is within the noise"),
        (1.98, "1.0 % shorter", (1.09, 1.09, 1.1, 1.1), "so it does not hold here"),
        (2.08, "4.0 % longer", (1.04,), ""),
    ],
)
def test_a_printed_run_says_what_its_medians_leave_out(
    far_s: float, said: str, ratios: tuple[float, ...], verdict: str
) -> None:
    def cell(loader: str, rtt_ms: float, settled_s: float) -> list[dict[str, object]]:
        same = {"cell_id": f"{loader}-{rtt_ms}", "loader": loader, "rtt_ms": rtt_ms, "stall_s": 0.5, "valid": "valid"}
        first, second = ({"epoch": 1, "duration_s": 9.0}, {"epoch": 2, "duration_s": settled_s})
        return [same | first | {"setup_s": 0.7}, same | second | {"setup_s": None}]

    text = "\n".join(
        write_start_up(
            [*cell("streaming", 0.1, 2.0), *cell("pytorch", 0.1, 3.0), *cell("streaming", 30.0, far_s)],
            [asdict(judge_ratios(TURNS, "<= 1.05", ratios))],
        )
    )
    assert "| 0.1 ms | `pytorch` | 0.70 s | 9.00 s | 3.00 s |" in text
    assert said in text
    assert verdict in text
    assert ("turns of both" in text) == bool(verdict)


def test_a_quick_run_stands_in_until_there_is_a_full_one(tmp_path: Path) -> None:
    page = "<!-- measured: some -->\n<!-- end -->"
    assert "no raw run is kept" in tables.generate(page, tmp_path)
    save_part(tmp_path, "some", ("one", "two"), "one", part(True, "short"))
    text = tables.generate(page, tmp_path)
    assert "| short |" in text
    assert "`--quick`" in text
    assert "load 2.5 before it" in text
    assert "`two`: no raw run is kept" in text
    save_part(tmp_path, "some", ("one", "two"), "one", part(False, "long"))
    text = tables.generate(page, tmp_path)
    assert "short" not in text
    assert "--quick" not in text
    with pytest.raises(ValueError, match="no part 'three'"):
        tables.generate(page.replace("some", "some three"), tmp_path)
