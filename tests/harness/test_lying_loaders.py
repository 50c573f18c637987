"""Loaders that lie: what each of them brings is found out, so that none of its rows is valid."""

import re
import time
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from energymon import save_readings
from harness.cell.content import Comparison, KeptSamples
from harness.cell.counters import CellCounters
from harness.cell.epoch import measured_epoch
from harness.cell.events import CONTENT, SET_UP, EventLog, read_events, save_events
from harness.config.specs import Tolerances
from harness.errors import CellError
from harness.results.cell_folder import load_cell, write_manifest
from harness.results.cells import CellRecord
from harness.results.checks import judge
from harness.results.files import parse_value, write_json
from harness.results.make_rows import make_epoch_rows
from harness.system.disk import is_on_disk
from harness.testbed.caches import DROPPED, drop_caches
from loaders.base import Batch, Samples
from loaders.pipeline import ClassPipeline, Item, load_item
from loaders.pipeline.image import epoch_order
from tests.harness.records import store_batches

N, SIZE, EPOCHS = 96, 1000, 2
LABELS = np.arange(N) % 7
LENIENT = Tolerances(others_cpu_pct=100, others_cpus=1000, steal_pct=100)


@dataclass(frozen=True)
class Roll:
    """Turns a sample's values around, by a random number of the sample's own or of the process's."""

    seeded: bool = True
    name: str = "Roll"

    def __call__(self, item: Item) -> Item:
        by = item.generator(self.name).integers(SIZE) if self.seeded else np.random.default_rng().integers(SIZE)
        item.data = torch.roll(item.data, int(by))
        return item


@dataclass(frozen=True)
class Bytes(ClassPipeline):
    """A file's bytes as numbers, turned around at random."""

    transforms: tuple[Roll, ...] = (Roll(),)

    def decode(self, encoded, samples, sample_id):
        return torch.tensor(list(encoded), dtype=torch.float32), {"label": int(samples.labels[sample_id])}


class Loader:
    """Brings every sample once, shuffled by the epoch, and counts its bytes, but for what it lies about.

    Args:
        order: makes the ids of an epoch of the right ones and the epoch.
        batch: makes what it brings of a right batch.
        epoch_of: the epoch whose random numbers its samples have.
    """

    samples: Samples
    pipeline = Bytes()

    def __init__(self, order=lambda order, epoch: order, batch=lambda batch: batch, epoch_of=lambda epoch: epoch):
        self._order, self._batch, self._epoch_of = order, batch, epoch_of

    def set_up(self):
        """Do what a constructor does."""

    def epoch(self, epoch):
        order = self._order(epoch_order(N, seed=0, epoch=epoch), epoch)
        for ids in np.split(order, range(8, len(order), 8)):
            labels = torch.from_numpy(LABELS[ids % N])
            yield self._batch(Batch(ids, self._load(ids % N, self._epoch_of(epoch)), labels, SIZE * len(ids)))

    def _load(self, ids, epoch):
        items = [load_item(self.pipeline, self.samples, int(one), seed=0, epoch=epoch) for one in ids]
        return torch.stack([torch.as_tensor(item.data) for item in items])


class Caching(Loader):
    """Keeps the samples of the first epoch in its memory."""

    def __init__(self):
        super().__init__()
        self._kept = {}

    def _load(self, ids, epoch):
        if epoch == 1:
            self._kept |= zip(ids.tolist(), super()._load(ids, epoch), strict=True)
        return torch.stack([self._kept[one] for one in ids.tolist()])


class OneSample(Loader):
    """Brings the data of one sample in the place of every other."""

    def _load(self, ids, epoch):
        if not hasattr(self, "_data"):
            self._data = super()._load([0], epoch)
        return self._data.expand(len(ids), SIZE)


class Working(Loader):
    """Computes before the clock."""

    def set_up(self):
        ends = time.process_time() + 1
        while time.process_time() < ends:
            pass


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
    "zeros": ("content", BOTH, Loader(batch=lambda batch: replace(batch, data=0 * batch.data))),
    "one sample's data": ("content", BOTH, OneSample()),
    "another order of data": ("content", BOTH, Loader(batch=lambda batch: replace(batch, data=batch.data.roll(1, 0)))),
    "transforms nothing": ("content", BOTH, Loader(epoch_of=lambda epoch: 0)),
    "transforms once": ("content", [2], Loader(epoch_of=lambda epoch: 1)),
    "half a sample": ("content", BOTH, Loader(batch=lambda batch: replace(batch, data=batch.data[:, : SIZE // 2]))),
    "not a number": ("content", BOTH, Loader(batch=lambda batch: replace(batch, data=batch.data * float("nan")))),
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


def stored_run(folder, loader, cell, keeps_labels=True, cold=False):
    """Run the epochs as a cell does and store what it stores; return the cell as it is judged.

    With `cold` the kernel forgets the files before each epoch.
    """
    run, out, files = folder, folder / "cells" / "liar", folder / "files"
    out.mkdir(parents=True)
    files.mkdir()
    cell["cell_id"] = "liar"
    paths = tuple(f"{n}.jpg" for n in range(N))
    for n, path in enumerate(paths):
        (files / path).write_bytes(np.random.default_rng(n).bytes(SIZE))
    loader.samples = Samples(files, paths, LABELS, np.full(N, SIZE))
    loader.samples.save(run / "samples.parquet")
    counters, kept = CellCounters(None, None), {epoch: KeptSamples(N) for epoch in BOTH}
    with EventLog(out / "events.jsonl") as log:
        log.add(SET_UP, **counters.read())
        loader.set_up()
        log.add("loader_made", duration_ns=1, **counters.read())
        for epoch, chosen in kept.items():
            if cold:
                # Nobody maps these files, so that advice is enough.
                assert drop_caches(files, "tree") == "fadvise"
                cell |= {"caches": DROPPED, "cold": "epoch"}
            records = measured_epoch(loader, lambda batch: None, epoch, log, counters, lambda *_: None, kept=chosen)
            store_batches(records, epoch, out, keeps_labels=keeps_labels)
        comparison = Comparison(run / "samples.parquet", None, loader.pipeline, 0, augments_itself=False)
        for epoch, chosen in kept.items():
            log.add(CONTENT, **comparison.compare(epoch, chosen.rows).to_event())
    cell["on_disk"] = is_on_disk(files)
    save_events(read_events(out / "events.jsonl"), out / "events.parquet")
    save_readings([], out / "energy.parquet")
    pq.write_table(pa.table({}), out / "resources.parquet")
    (out / "link.json").write_text("{}")
    write_json(out / "cell.json", parse_value(CellRecord, cell))
    write_manifest(out)
    return load_cell(out)


@pytest.fixture
def judged(tmp_path, stored):
    def of(loader, keeps_labels=True, cold=False):
        cell = asdict(stored().cell)
        cell["energy"] = {"interval_ms": 100.0, "series": []}
        cell["dataset"] = {"name": "tiny", "samples": N, "bytes": N * SIZE}
        data = stored_run(tmp_path, loader, cell, keeps_labels, cold)
        rows, checks = judge([data], make_epoch_rows(data), LENIENT)
        failed = {(check.epoch, check.rule) for check in checks if check.verdict in ("fail", "unknown")}
        of.labels, of.content, of.reads, of.setup = (
            [check for check in checks if check.rule == rule]
            for rule in ("labels", "content", "local_reads", "setup_work")
        )
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


def test_a_sample_that_differs_is_named_with_what_differs(judged):
    judged(LIES["zeros"][2])
    for check in judged.content:
        assert re.fullmatch(r"8 of 8 wrong: of sample \d+, all of its data are 0", check.actual)


def test_samples_whose_random_numbers_cannot_be_drawn_again_are_judged_by_their_form(judged):
    class Drawing(Loader):
        pipeline = Bytes((Roll(seeded=False),))

    _, failed = judged(Drawing())
    assert (failed, {check.actual.partition(";")[0] for check in judged.content}) == (set(), {"8 compared"})
    assert all("not the pipeline's" in check.actual for check in judged.content)


@dataclass(frozen=True)
class OneItem(Bytes):
    """Refuses to collate a sample by itself."""

    def collate(self, items):
        if len(items) < 2:
            raise ValueError("expected a batch")
        return super().collate(items)


def test_a_pipeline_of_the_user_s_that_cannot_make_one_sample_costs_no_row(judged):
    loader = Loader()
    loader.pipeline = OneItem()
    rows, failed = judged(loader)
    assert (failed, {row.valid for row in rows}) == (set(), {"valid"})
    assert {(one.verdict, one.actual) for one in judged.content} == {
        ("not applicable", "cannot be compared: ValueError: expected a batch")
    }


@dataclass(frozen=True)
class Logarithm(Bytes):
    """The logarithms of a file's bytes: of 0 it is infinite."""

    def decode(self, encoded, samples, sample_id):
        data, meta = super().decode(encoded, samples, sample_id)
        data[0] = 0
        return data.log(), meta


def test_infinite_values_that_are_the_same_are_no_difference(judged):
    loader = Loader()
    loader.pipeline = Logarithm()
    assert judged(loader)[1] == set()
    assert {one.actual.partition(";")[0] for one in judged.content} == {"8 compared"}


@pytest.mark.parametrize("liar", [Loader(batch=LIES["zeros"][2]._batch), OneSample()], ids=["zeros", "one sample"])
def test_constants_and_copies_are_found_by_their_form(liar, judged):
    liar.pipeline = Bytes((Roll(seeded=False),))
    assert judged(liar)[1] == {(epoch, "content") for epoch in BOTH}


@pytest.mark.parametrize(("loader", "later"), [(Caching(), "fail"), (Loader(), "pass")], ids=["keeps", "reads again"])
def test_a_loader_that_keeps_samples_in_its_memory_reads_too_little_from_the_disk(loader, later, judged, tmp_path):
    judged(loader, cold=True)
    expected = ["pass", later] if is_on_disk(tmp_path) else ["not applicable"] * 2
    assert [check.verdict for check in judged.reads] == expected


def test_work_in_a_constructor_is_warned_of(judged):
    assert judged(Working())[1] == set()
    assert [check.verdict for check in judged.setup] == ["warn", "not applicable"]


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
