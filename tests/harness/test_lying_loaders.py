"""Loaders that lie: what each of them brings is found out, so that none of its rows is valid."""

from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from energymon import save_readings
from harness.cell.counters import CellCounters
from harness.cell.epoch import measured_epoch
from harness.cell.events import EventLog, read_events, save_events
from harness.config.specs import Tolerances
from harness.errors import CellError
from harness.results.cell_folder import load_cell, write_manifest
from harness.results.cells import CellRecord
from harness.results.checks import judge
from harness.results.files import parse_value, write_json
from harness.results.make_rows import make_epoch_rows
from loaders.base import Batch, Samples
from loaders.pipeline.image import epoch_order
from tests.harness.records import store_batches

N, SIZE, EPOCHS = 96, 1000, 2
LABELS = np.arange(N) % 7
LENIENT = Tolerances(others_cpu_pct=100, others_cpus=1000, steal_pct=100)


class Loader:
    """Brings every sample once, shuffled by the epoch, and counts its bytes, but for what it lies about.

    Args:
        order: makes the ids of an epoch of the right ones and the epoch.
        batch: makes what it brings of a right batch.
    """

    def __init__(self, order=lambda order, epoch: order, batch=lambda batch: batch):
        self._order, self._batch = order, batch

    def epoch(self, epoch):
        order = self._order(epoch_order(N, seed=0, epoch=epoch), epoch)
        for ids in np.split(order, range(8, len(order), 8)):
            labels = torch.from_numpy(LABELS[ids % N])
            yield self._batch(Batch(ids, torch.zeros(len(ids), 1), labels, SIZE * len(ids)))


def of_another_epoch(order, epoch):
    """Keep half of an epoch for the next one: every sample comes as often as it should, over the cell."""
    first = epoch_order(N, seed=0, epoch=1)
    return {1: first[: N // 2], 2: np.concatenate([first[N // 2 :], first])}[epoch]


BOTH = range(1, EPOCHS + 1)
LIES = {
    "loses": ("exactly_once", BOTH, Loader(lambda order, epoch: order[:-8])),
    "repeats": ("exactly_once", BOTH, Loader(lambda order, epoch: np.where(order == 5, 6, order))),
    "invents": ("exactly_once", BOTH, Loader(lambda order, epoch: order + 1)),
    "keeps some": ("exactly_once", BOTH, Loader(of_another_epoch)),
    "overstates": ("loader_bytes", BOTH, Loader(batch=lambda batch: replace(batch, nbytes=1000 * batch.nbytes))),
    # It would hide a cache: no byte is needed, so none has to come over the link.
    "understates": ("loader_bytes", BOTH, Loader(batch=lambda batch: replace(batch, nbytes=0))),
    "replays": ("shuffled", [2], Loader(lambda order, epoch: epoch_order(N, seed=0, epoch=1))),
    "decodes nothing": ("labels", BOTH, Loader(batch=lambda batch: replace(batch, labels=0 * batch.labels))),
}


def with_labels(make):
    """Return a loader whose labels are made of the ids of a batch."""
    return Loader(batch=lambda batch: replace(batch, labels=make(batch.ids)))


class Reusing(Loader):
    """Brings each batch in the memory of the one before."""

    def epoch(self, epoch):
        memory = torch.empty(8, dtype=torch.int64)
        for batch in super().epoch(epoch):
            yield replace(batch, labels=memory.copy_(batch.labels))
        memory.zero_()


def stored_run(folder, loader, cell, keeps_labels=True):
    """Run the epochs as a cell does and store what it stores; return the cell as it is judged."""
    run, out = folder, folder / "cells" / "liar"
    out.mkdir(parents=True)
    cell["cell_id"] = "liar"
    samples = tuple(f"{n}.jpg" for n in range(N))
    Samples(run, samples, LABELS, np.full(N, SIZE)).save(run / "samples.parquet")
    with EventLog(out / "events.jsonl") as log:
        log.add("loader_made", duration_ns=1, **CellCounters(None, None).read())
        for epoch in range(1, EPOCHS + 1):
            records = measured_epoch(
                loader, lambda batch: None, epoch, log, CellCounters(None, None), lambda done: None
            )
            store_batches(records, epoch, out, keeps_labels=keeps_labels)
    save_events(read_events(out / "events.jsonl"), out / "events.parquet")
    save_readings([], out / "energy.parquet")
    pq.write_table(pa.table({}), out / "resources.parquet")
    (out / "link.json").write_text("{}")
    write_json(out / "cell.json", parse_value(CellRecord, cell))
    write_manifest(out)
    return load_cell(out)


@pytest.fixture
def judged(tmp_path, stored):
    def of(loader, keeps_labels=True):
        cell = asdict(stored().cell)
        cell["energy"] = {"interval_ms": 100.0, "series": []}
        cell["dataset"] = {"name": "tiny", "samples": N, "bytes": N * SIZE}
        data = stored_run(tmp_path, loader, cell, keeps_labels)
        rows, checks = judge([data], make_epoch_rows(data), LENIENT)
        failed = {(check.epoch, check.rule) for check in checks if check.verdict in ("fail", "unknown")}
        of.labels = [check for check in checks if check.rule == "labels"]
        return rows, failed

    return of


def test_an_honest_loader_s_rows_are_valid(judged):
    rows, failed = judged(Loader())
    assert failed == set()
    assert [(row.valid, row.samples, row.bytes) for row in rows] == [("valid", N, N * SIZE)] * EPOCHS


@pytest.mark.parametrize(("rule", "epochs", "liar"), LIES.values(), ids=LIES)
def test_no_row_of_a_lie_is_valid(rule, epochs, liar, judged):
    rows, failed = judged(liar)
    assert failed >= {(epoch, rule) for epoch in epochs}
    assert all(row.bytes <= EPOCHS * N * SIZE for row in rows)
    assert {row.epoch for row in rows if row.valid != "valid"} == set(epochs)


def test_a_wrong_label_is_named_with_its_sample(judged):
    rows, _ = judged(with_labels(lambda ids: torch.from_numpy(np.where(ids == 5, 6, LABELS[ids]))))
    assert all(row.valid != "valid" for row in rows)
    assert {check.actual for check in judged.labels} == {"1 of 96 wrong, the first of them 6 where sample 5 has 5"}


def test_a_loader_may_use_the_memory_of_its_labels_again(judged):
    assert judged(Reusing())[1] == set()


@pytest.mark.parametrize(
    "labels",
    [
        lambda ids: torch.zeros(len(ids)),
        lambda ids: torch.zeros(len(ids), 3, dtype=torch.int64),
        lambda ids: None,
        lambda ids: torch.zeros(len(ids) + 1, dtype=torch.int64),
    ],
    ids=["floats", "several a sample", "none", "one too many"],
)
def test_labels_of_another_form_are_not_judged_wrong(labels, judged):
    judged(with_labels(labels))
    assert [check.verdict for check in judged.labels] == ["unknown", "unknown"]


def test_labels_given_as_an_array_are_compared(judged):
    judged(with_labels(lambda ids: np.zeros(len(ids), np.int32)))
    assert [check.verdict for check in judged.labels] == ["fail", "fail"]


def test_labels_of_a_workload_without_classes_are_not_compared(judged):
    assert judged(LIES["decodes nothing"][2], keeps_labels=False)[1] == set()
    assert {check.verdict for check in judged.labels} == {"not applicable"}


def test_ids_without_data_fail_the_cell(judged):
    with pytest.raises(CellError, match=r"epoch 1, batch 0: Loader .*8.*1"):
        judged(Loader(batch=lambda batch: replace(batch, data=torch.zeros(1, 1))))
