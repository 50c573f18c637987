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


class Honest:
    """Brings every sample once, shuffled by the epoch, and counts its bytes."""

    def epoch(self, epoch):
        yield from map(self.batch, np.split(epoch_order(N, seed=0, epoch=epoch), N // 8))

    def batch(self, ids):
        return Batch(ids, torch.zeros(len(ids), 1), torch.from_numpy(LABELS[ids % N]), SIZE * len(ids))


class Losing(Honest):
    def epoch(self, epoch):
        yield from map(self.batch, np.split(epoch_order(N, seed=0, epoch=epoch)[: N - 8], N // 8 - 1))
        yield self.batch(np.array([], np.int64))


class Repeating(Honest):
    def epoch(self, epoch):
        order = epoch_order(N, seed=0, epoch=epoch)
        yield from map(self.batch, np.split(np.where(order == 5, 6, order), N // 8))


class ReturningEarly(Honest):
    def epoch(self, epoch):
        for count, batch in enumerate(super().epoch(epoch)):
            if count == N // 16:
                return
            yield batch


class Inventing(Honest):
    def epoch(self, epoch):
        yield from map(self.batch, np.split(epoch_order(N, seed=0, epoch=epoch) + 1, N // 8))


class Overstating(Honest):
    def batch(self, ids):
        return replace(super().batch(ids), nbytes=1000 * SIZE * len(ids))


class Understating(Honest):
    """Would hide a cache: no byte is needed, so none has to come over the link."""

    def batch(self, ids):
        return replace(super().batch(ids), nbytes=0)


class Replaying(Honest):
    """Keeps the first epoch and gives it as every other."""

    def epoch(self, epoch):
        return super().epoch(1)


class OfAnotherEpoch(Honest):
    """Keeps half of an epoch for the next one: every sample comes as often as it should, over the cell."""

    def epoch(self, epoch):
        order = np.concatenate([epoch_order(N, seed=0, epoch=1)] * EPOCHS)
        half = N // 2
        parts = {1: order[:half], 2: order[half:]}[epoch]
        yield from map(self.batch, np.split(parts, len(parts) // 8))


class DecodingNothing(Honest):
    """Brings the right ids and label 0."""

    def batch(self, ids):
        return replace(super().batch(ids), labels=torch.zeros(len(ids), dtype=torch.int64))


class OneLabelOff(Honest):
    def batch(self, ids):
        return replace(super().batch(ids), labels=torch.from_numpy(np.where(ids == 5, 6, LABELS[ids])))


class Reusing(Honest):
    """Brings each batch in the memory of the one before."""

    def epoch(self, epoch):
        memory = torch.empty(8, dtype=torch.int64)
        for batch in super().epoch(epoch):
            yield replace(batch, labels=memory.copy_(batch.labels))
        memory.zero_()


class OfOtherForm(Honest):
    """Brings what is no whole number a sample."""

    def __init__(self, labels):
        self.labels = labels

    def batch(self, ids):
        return replace(super().batch(ids), labels=self.labels(len(ids)))


class Empty(Honest):
    """Names samples for which it brings no data."""

    def batch(self, ids):
        return replace(super().batch(ids), data=torch.zeros(1, 1))


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
    rows, failed = judged(Honest())
    assert failed == set()
    assert [(row.valid, row.samples, row.bytes) for row in rows] == [("valid", N, N * SIZE)] * EPOCHS


@pytest.mark.parametrize(
    ("liar", "rules"),
    [
        (Losing, {(1, "exactly_once"), (2, "exactly_once")}),
        (Repeating, {(1, "exactly_once"), (2, "exactly_once")}),
        (ReturningEarly, {(1, "exactly_once"), (2, "exactly_once")}),
        (Inventing, {(1, "exactly_once"), (2, "exactly_once")}),
        (Overstating, {(1, "loader_bytes"), (2, "loader_bytes")}),
        (Understating, {(1, "loader_bytes"), (2, "loader_bytes")}),
        (Replaying, {(2, "shuffled")}),
        (OfAnotherEpoch, {(1, "exactly_once"), (2, "exactly_once")}),
        (DecodingNothing, {(1, "labels"), (2, "labels")}),
        (OneLabelOff, {(1, "labels"), (2, "labels")}),
    ],
)
def test_no_row_of_a_lie_is_valid(liar, rules, judged):
    rows, failed = judged(liar())
    assert rules <= failed
    assert all(row.bytes <= EPOCHS * N * SIZE for row in rows)
    assert {row.epoch for row in rows if row.valid != "valid"} == {epoch for epoch, _ in rules}


def test_a_wrong_label_is_named_with_its_sample(judged):
    judged(OneLabelOff())
    assert {check.actual for check in judged.labels} == {"1 of 96 wrong, the first of them 6 where sample 5 has 5"}


def test_a_loader_may_use_the_memory_of_its_labels_again(judged):
    assert judged(Reusing())[1] == set()


@pytest.mark.parametrize(
    "labels",
    [torch.zeros, lambda n: torch.zeros(n, 3, dtype=torch.int64), lambda n: None, lambda n: torch.zeros(n + 1).long()],
    ids=["floats", "several a sample", "none", "one too many"],
)
def test_labels_of_another_form_are_not_judged_wrong(labels, judged):
    judged(OfOtherForm(labels))
    assert [check.verdict for check in judged.labels] == ["unknown", "unknown"]


def test_labels_given_as_an_array_are_compared(judged):
    judged(OfOtherForm(lambda n: np.zeros(n, np.int32)))
    assert [check.verdict for check in judged.labels] == ["fail", "fail"]


def test_labels_of_a_workload_without_classes_are_not_compared(judged):
    assert judged(DecodingNothing(), keeps_labels=False)[1] == set()
    assert {check.verdict for check in judged.labels} == {"not applicable"}


def test_ids_without_data_fail_the_cell(judged):
    with pytest.raises(CellError, match=r"epoch 1, batch 0: Empty .*8.*1"):
        judged(Empty())
