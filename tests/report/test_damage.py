"""Every file of a results folder, damaged in every way: one line that names it, an exit status and no traceback."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.errors import BROKEN_FIGURE, ResultsError
from harness.report.__main__ import main

JSON = ("config.yaml", "plan.json", "provenance.json", "checks.json", "cell.json", "link.json")
DERIVED = ("epochs.csv", "metrics.parquet")
WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "binary": lambda _: bytes(range(256)),
    "empty": lambda _: b"",
    "of another type": lambda _: b'"text"',
    "a number": lambda _: b"7",
}
VALUES: dict[str, Any] = {"text": "damaged", "a list": [["damaged"]], "keys": {"damaged": {}}, "a number": -7, "NaN": math.nan}


@pytest.fixture
def folder(build, build_sweep, request) -> Path:
    """Return a results folder without figures, quick to draw, that has every file."""
    builder = build(repeats=1)
    builder.config["figures"] = []
    path: Path = builder.write()
    return path


def find(folder: Path, name: str) -> Path:
    """Return a file of the folder, or the first of a cell's."""
    return next(iter(sorted(folder.rglob(name))))


def outcome(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> int:
    """Draw the report; returns the status, having seen that an error is one line that names the file."""
    status = main([str(folder)])
    said = capsys.readouterr().err
    if status:
        assert status in {ResultsError.exit_status, BROKEN_FIGURE}
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert name in said
    else:
        assert said == ""
    return status


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield where every value within a JSON value is; of a list, those of its first entry."""
    entries = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, inner in entries:
        yield (key,)
        yield from ((key, *rest) for rest in places(inner))


@pytest.mark.parametrize("damage", WHOLE)
@pytest.mark.parametrize("name", [*JSON, "epochs.csv", "ledger.jsonl"])
def test_a_file_that_is_damaged_as_a_whole_is_named(folder, capsys, name, damage):
    path = find(folder, name)
    path.write_bytes(WHOLE[damage](path.read_bytes()))
    torn = name == "ledger.jsonl"  # its last line may be torn, as a killed run leaves it
    assert outcome(folder, capsys, name) == (0 if torn else ResultsError.exit_status)


@pytest.mark.parametrize("name", JSON)
def test_a_value_that_is_missing_or_of_another_type_is_told_with_its_file_or_does_without(folder, capsys, name):
    path = find(folder, name)
    whole = json.loads(path.read_text())
    for place in places(whole):
        for damage in ("missing", *VALUES):
            damaged = copy.deepcopy(whole)
            *outer, last = place
            inner = damaged
            for key in outer:
                inner = inner[key]
            if damage == "missing":
                del inner[last]
            else:
                inner[last] = VALUES[damage]
            path.write_text(json.dumps(damaged))
            try:
                outcome(folder, capsys, name)
            except Exception as e:
                import traceback
                open("/tmp/scratch/page/fuzz.log","a").write(f"FAIL {name} {place} {damage} {e!r:.150} {traceback.extract_tb(e.__traceback__)[-1]}\n")
