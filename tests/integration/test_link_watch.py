"""A link that is watched while data flows over it: one that is stopped or cut shows, one that is busy does not.

tests/integration/test_checks_fail.py has a delay line that stops in an epoch, and an end that does not answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.cell.messages import AcceleratorRecord
from harness.config.regime import Regime
from harness.results.cell_folder import CellData
from harness.results.cells import CellRecord, DatasetRecord, EnergyRecord, LinkEpoch, LinkRecord
from harness.results.metrics import summarize_pings
from harness.testbed.base import Node
from harness.testbed.link import INTERFACE, STORAGE_ADDRESS, open_link
from harness.testbed.link.measure.probe import MODULE, probe_server
from harness.testbed.link.measure.watch import INTERVAL_S, LinkWatch, Ping, ping_bytes
from harness.testbed.link.namespace import run_in
from tests.integration.runs import two_namespaces, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.serial,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and TUN devices"),
]

REGIME = Regime(name="near", rtt_ms=10.0, rate_gbit=0.5)
LOAD_S = 1.6
NONE = np.empty(0, np.int64)
FLOWING_BYTES = 1_000_000
"""Only the flows send this much."""


@pytest.fixture(scope="module")
def namespaces():
    with two_namespaces() as made:
        yield made


def compute_node(namespaces):
    return Node("compute", "watch", interface=INTERFACE, namespace=namespaces[1])


@pytest.fixture(scope="module")
def link(namespaces):
    with open_link(*namespaces, kind="relay") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(namespaces):
    with probe_server(Node("storage", "linktest", STORAGE_ADDRESS, namespace=namespaces[0])) as running:
        yield running


@pytest.fixture
def under_load(link, namespaces, server, tmp_path):
    """Watch the link while two flows fill it and something is done to it; return what was seen."""

    def seen(do):
        link.set(REGIME)
        link.counters()
        arguments = json.dumps({"seconds": LOAD_S, "flows": 2})
        flows = [sys.executable, *MODULE, "measure", STORAGE_ADDRESS, str(server), arguments]
        loading = threading.Thread(target=run_in, args=(namespaces[1], flows))
        start = {"utc_ns": time.time_ns(), "epoch": 1}
        with LinkWatch(compute_node(namespaces), STORAGE_ADDRESS, tmp_path / "link.parquet") as watch:
            watch.start()
            loading.start()
            before = link.counters().bytes
            wait_until(lambda: link.counters().bytes - before >= FLOWING_BYTES)
            do()
            loading.join()
        end = {"utc_ns": time.time_ns()}
        pings = [Ping(**row) for row in pq.read_table(tmp_path / "link.parquet").to_pylist()]
        assert pings == watch.pings
        cell = CellRecord(
            cell_id="a",
            loader="loader",
            workload="workload",
            regime=REGIME,
            repeat=1,
            dataset=DatasetRecord(name="dataset", samples=0, bytes=0),
            accelerator=AcceleratorRecord(),
            energy=EnergyRecord(interval_ms=100),
        )
        record = LinkRecord(epochs=[LinkEpoch(epoch=1, pause_s=link.counters().pause_s)])
        return summarize_pings(CellData(cell, record, [], {}, [], NONE, NONE, pings=pings), start, end)

    return seen


def test_a_link_that_is_full_is_not_held(under_load):
    found = under_load(lambda: None)
    assert found.sent >= found.due // 2
    assert found.lost == 0
    # Generous: this host may be busy with other tests.
    assert sum(held > 100 for held in found.held_ms) <= 1


def test_an_idle_delay_line_that_is_stopped_shows_as_a_pause(link):
    link.set(REGIME)
    link.counters()
    os.kill(link.pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(link.pid, signal.SIGCONT)
    time.sleep(0.1)
    assert link.counters().pause_s > 0.4
    assert link.counters().pause_s < 0.4


def test_a_rate_that_is_cut_meanwhile_holds_the_pings(under_load, link, namespaces):
    def cap(rate):
        for namespace in namespaces:
            shape = ["rate", rate, "burst", "128kb", "limit", "1gb"]
            run_in(namespace, ["tc", "qdisc", "replace", "dev", INTERFACE, "root", "handle", "1:", "tbf", *shape])

    def cut():
        cap("20mbit")
        time.sleep(0.8)
        cap("500mbit")

    if link.describe()["relay"]["rate_cap"] != "tbf":
        pytest.skip("this kernel has no tbf")
    found = under_load(cut)
    assert sum(held > 20 for held in found.held_ms) >= 3


def test_the_watch_s_own_bytes_are_known(link, namespaces, tmp_path):
    link.set(REGIME)
    before, start_ns = link.counters(), time.time_ns()
    with LinkWatch(compute_node(namespaces), STORAGE_ADDRESS, tmp_path / "link.parquet") as watch:
        watch.start()
        time.sleep(5.5 * INTERVAL_S)
    received, sent = ping_bytes(watch.pings, start_ns, time.time_ns(), link.header_bytes)
    assert sent == received > 0
    assert link.counters().bytes - before.bytes == sent + received
