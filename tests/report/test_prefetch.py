"""Cassandra-DALI's figures 3 and 4: time between batches and MB/s of each connection, from what cells stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.report import read_report, render
from harness.report.figures import make_figure_tables
from harness.results.reader import read_results

SECOND_NS = 10**9
START = 1_764_000_000 * SECOND_NS


def give(folder: Path, loader: str, waits_s: list[float], connections: int) -> None:
    """Let the epochs of a loader's cells have batches of 4 MB, and connections of which each brings an equal part."""
    for home in folder.glob(f"cells/{loader}-resnet50-wan_150ms-*"):
        batches: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        for epoch in (0, 1):
            start = START + 100 * epoch * SECOND_NS
            duration_ns = round(sum(waits_s) * SECOND_NS)
            for event, at in (("epoch_start", start), ("epoch_end", start + duration_ns)):
                events.append({"event": event, "utc_ns": at, "epoch": epoch, "duration_ns": duration_ns})
            at = start
            for step, wait in enumerate(waits_s):
                batches.append({"epoch": epoch, "step": step, "wait_s": wait, "step_s": 0.0, "bytes": 4_000_000})
                at += round(wait * SECOND_NS)
                for connection in range(connections):
                    part = 4_000_000 // connections
                    arrived = {"event": "loader.arrived", "utc_ns": at - 1, "epoch": epoch, "connection": connection}
                    events.append({**arrived, "bytes": part})
        pd.DataFrame(batches).to_parquet(home / "batches.parquet")
        frame = pd.DataFrame(
            {
                "event": [event["event"] for event in events],
                "utc_ns": [event["utc_ns"] for event in events],
                "mono_ns": [event["utc_ns"] for event in events],
                "values": [json.dumps({k: v for k, v in e.items() if k not in ("event", "utc_ns")}) for e in events],
            }
        )
        frame.to_parquet(home / "events.parquet")


@pytest.fixture
def run(build: Callable[..., Any]) -> Callable[..., Path]:
    def make(figure: str, grown_s: float | None = None) -> Path:
        builder = build(loaders=("nosql", "streaming"), regimes=("wan_20ms", "wan_150ms"), repeats=1).settle()
        builder.config |= {"figures": [figure], "name": "prefetch_ooo"}
        waits_s = [0.2, *[0.01] * 180]
        if grown_s is not None:
            builder.config["loaders"]["nosql"] |= {"slow_start": 4, "prefetch_batches": 16}
            waits_s[1:48] = [grown_s] * 47
        folder: Path = builder.write()
        # A first batch after 0.2 s; then one each 10 ms, or 9 each 10 ms and one that takes 1 s.
        give(folder, "nosql", waits_s, connections=4)
        give(folder, "streaming", [0.2, *[*[0.01] * 9, 1.0] * 18], connections=0)
        return folder

    return make


def test_times_between_batches_are_those_after_the_prefetch_has_filled(run: Callable[..., Path]) -> None:
    folder = run("prefetch_batches")
    (table,) = make_figure_tables(read_results(folder))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["NoSQL"] == ("181", "0.0100 s", "0.0100 s", "0.0100 s", "362")
    assert rows["streaming"][1:4] == ("0.0100 s", "1.00 s", "1.00 s")
    assert not render(read_report(folder)).broken
    assert "at 150 ms" in (folder / "report.html").read_text()


def test_batches_that_come_while_the_prefetch_grows_are_in_no_number(run: Callable[..., Path]) -> None:
    (table,) = make_figure_tables(read_results(run("prefetch_batches", grown_s=0.015)))
    assert {row[0]: row[4] for row in table.rows}["NoSQL"] == "0.0100 s"
    # A prefetch that fills for more than half of the epoch leaves that half.
    (table,) = make_figure_tables(read_results(run("prefetch_batches", grown_s=0.05)))
    assert {row[0]: row[4] for row in table.rows}["NoSQL"] == "0.0500 s"


def test_the_paper_s_values_stand_below_ours(run: Callable[..., Path]) -> None:
    (table,) = make_figure_tables(read_results(run("prefetch_batches")))
    assert table.rows[-1] == ("paper, out of order", "–", "–", "–", "0.0300 s", "–") and table.dim == {2}
    (table,) = make_figure_tables(read_results(run("prefetch_connections")))
    assert table.rows[-2] == ("paper, in order", "–", "–", "300 to 1300", "–", "–") and table.dim == {2, 3}
    assert table.rows[-1][2] == "4000"


def test_throughput_is_of_each_connection_where_the_loader_reports_it(run: Callable[..., Path]) -> None:
    folder = run("prefetch_connections")
    (table,) = make_figure_tables(read_results(folder))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["streaming"] == ("–",) * 5
    connections, mean, ends, slowest, fastest = rows["NoSQL"]
    assert connections == "4" and 380 <= float(mean) <= 420 and slowest == fastest
    assert float(slowest) == pytest.approx(181 * 4 / 4 / 2.0, rel=0.15)
    assert [380 <= float(end) <= 420 for end in ends.split(" to ")] == [True, True]
    assert not render(read_report(folder)).broken
    drawn = (folder / "figures" / "prefetch_connections.svg").read_text()
    assert "4 connections" in drawn and "the loader does not report its connections" in drawn
