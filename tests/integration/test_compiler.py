"""No C compiler runs while an epoch is measured, even where nothing is cached and no loader was warmed up."""

import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.runs import SMALL, command, places, rows_of, run

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMPILER = """#!/bin/sh
echo "$(date +%s%N) $*" >>"$COMPILER_LOG"
"$REAL_CC" "$@"
status=$?
date +%s%N >>"$COMPILER_LOG"
exit $status
"""


@pytest.fixture
def environment(tmp_path):
    """Where every process has to compile for itself, and each run of the compiler is written down."""
    real = shutil.which("cc")
    if real is None:
        pytest.skip("no C compiler on this host")
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    (tmp_path / "no-folder").touch()
    return {
        **os.environ,
        "PATH": f"{compiler.parent}:{os.environ['PATH']}",
        "REAL_CC": real,
        "COMPILER_LOG": str(tmp_path / "log"),
        "XDG_CACHE_HOME": str(tmp_path / "no-folder"),
    }


def nanoseconds(utc: str) -> int:
    return round(datetime.fromisoformat(utc).timestamp() * 1e9)


def test_no_compiler_runs_in_an_epoch_of_a_cell(environment, tmp_path):
    only = ["~loaders.dali", "~loaders.streaming", "~loaders.pytorch", "+loader@loaders.sample_aware=sample_aware"]
    only += ["loaders.sample_aware.num_workers=2", "warmup_samples=0"]
    done = run(command("+experiment=smoke", *SMALL, *only, *places(tmp_path)), env=environment)
    rows = rows_of(tmp_path / "results" / "latest")
    epochs = [(nanoseconds(row["start_utc"]), nanoseconds(row["end_utc"])) for row in rows]
    assert epochs, done.stderr
    lines = Path(environment["COMPILER_LOG"]).read_text().splitlines()
    assert any("ticker" in line for line in lines), "the cell compiles for itself here"
    for line in lines:
        at = int(line.split()[0])
        assert not any(start <= at <= end for start, end in epochs), line
