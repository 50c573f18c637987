"""The table of the acceptance suite: every loader with every pipeline that it can run. A new loader is one line."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from harness.run.prepare import python_of
from joulefeed.child import Child
from loaders import Batch, ImageTransform, Loader, Samples
from loaders.mosaic.keys import make_keys
from loaders.nosql import CassandraServer
from loaders.nosql.ingest import ingest
from loaders.nosql.schema import DatabaseTable
from loaders.pipeline import Item, Pipeline, Tensors, WrappedPipeline, load_item
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.detection import DetectionPipeline
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.speech import SpeechPipeline
from loaders.records.raw_batch import RawBatch
from loaders.records.record_loader import RecordLoader
from loaders.records.shards.convert import convert
from loaders.records.shards.index import ShardSet
from loaders.shared.options import RecordOptions, takes_options
from tests.loaders.conftest import encode_image
from tests.loaders.small_data import make_pictures, make_sounds, make_volumes, write_samples

KEYS: dict[str, Path] = {}
"""The client's keys of an endpoint that knows nobody without."""
ALL = ("image", "segmentation", "detection", "speech")
COUNT = 13
"""Samples; a prime, so that no batch size and no number of ranks divides it."""
BATCH_SIZE = 4
SIZE = 64
READY_S = 120.0


@dataclass(frozen=True)
class Entry:
    """A loader as the table has it."""

    target: str | type[Loader]
    options: dict[str, Any] = field(default_factory=dict)
    pipelines: tuple[str, ...] = ALL
    grey_levels: float = 0.0
    """How far a picture's pixels may be from those of the pipeline itself, on average, of 255."""
    deviations: float = 0.0
    """How far a feature of speech may be from that of the pipeline itself, of its channel's."""
    server: str = ""
    """What serves its samples: the module of a daemon, "database" for tables of the session's one, "files" for the
    shards as they lie there, none for files."""
    daemon: tuple[str, ...] = ()
    """Options of its daemon."""
    package: str = ""
    """What it wraps, in an environment of its own, where tests/integration/test_environments.py runs its tests."""
    environment: str = ""
    """The environment whose Python prepares its samples and is given to it; none for this one's."""

    @property
    def runs_python(self) -> bool:
        """Whether it runs a pipeline of one's own."""
        return self.pipelines == ALL or bool(self.environment)

    @property
    def streams(self) -> bool:
        """Whether it gets an endpoint in place of samples."""
        return bool(self.server)

    def make(self, data: Data, pipeline: Pipeline, endpoint: str | None = None, **options: Any) -> Any:
        """Return the loader."""
        given = {"endpoint": endpoint} if self.streams else {"samples": data.samples}
        if self.environment:
            given |= {"python": python_of(self.environment), "keys": KEYS[str(endpoint)]}
        common = {"transform": pipeline, "batch_size": BATCH_SIZE, "seed": 0, **given}
        return self.find()(**{**common, **self.options, **options})

    def find(self) -> Any:
        """Return its class."""
        if not isinstance(self.target, str):
            return self.target
        module, name = self.target.rsplit(".", 1)
        return getattr(importlib.import_module(module), name)


class ShardFetch:
    """Reads an epoch's records from local shards, a batch at a time."""

    def __init__(self, shards: ShardSet, order: np.ndarray[Any, Any], epoch: int, batch_size: int) -> None:
        self._places = {int(record["id"]): (shard.path, record) for shard in shards.shards for record in shard.records}
        self._order, self._epoch, self._batch_size, self._batch = order, epoch, batch_size, 0
        self._closed = False

    def next(self, wait: bool) -> RawBatch | None:
        ids = self._order[self._batch * self._batch_size :][: self._batch_size]
        if self._closed or not len(ids):
            raise StopIteration
        if not wait and self._batch % 2:
            return None
        found = [self._places[int(sample_id)] for sample_id in ids]
        frames = []
        for path, record in found:
            with path.open("rb") as file:
                file.seek(record["offset"])
                frames.append(memoryview(file.read(record["size"])))
        columns = ("label", "image", "image_size", "checksum")
        labels, offsets, sizes, checksums = (np.array([r[name] for _, r in found], np.int64) for name in columns)
        self._batch += 1
        return RawBatch(
            self._epoch, self._batch - 1, ids, labels, tuple(frames), np.arange(len(ids)), offsets, sizes, checksums
        )

    def close(self) -> None:
        self._closed = True


class ShardLoader(RecordLoader):
    """A loader of records without a network: its endpoint is a folder of shards."""

    @takes_options(RecordOptions)
    def __init__(self, *, endpoint: str, transform: Any = None, **keywords: Any) -> None:
        super().__init__(RecordOptions(**keywords), transform=transform)
        self._shards = ShardSet.open(Path(endpoint))
        self._open(self._shards.samples)

    def _start(self, epoch: int) -> ShardFetch:
        return ShardFetch(self._shards, self._share.order(epoch), epoch, self._options.batch_size)


TABLE = {
    "pytorch": Entry("loaders.PyTorchLoader", {"num_workers": 2}),
    "pytorch_in_process": Entry("loaders.PyTorchLoader", {"num_workers": 0}, ("image",)),
    "pytorch_fresh": Entry("loaders.PyTorchLoader", {"num_workers": 1, "persistent_workers": False}, ("image",)),
    "dali": Entry("loaders.DaliLoader", grey_levels=0.5, deviations=1e-3),
    "dali_python": Entry("loaders.DaliLoader", {"operators": "python"}, ("image", "detection")),
    "dali_mapped": Entry("loaders.DaliLoader", {"mmap": True}, ("image",), grey_levels=0.5),
    "pecan": Entry("loaders.PecanLoader", {"num_workers": 2}, ("speech",)),
    "size_balanced": Entry("loaders.SizeBalancedLoader", {"num_workers": 2}, ("image",)),
    "sample_aware": Entry("loaders.SampleAwareLoader", {"num_workers": 2, "order": "strict"}),
    "spdl": Entry("loaders.SpdlLoader", {"num_threads": 2, "output_order": "input"}),
    "spdl_decode": Entry(
        "loaders.SpdlLoader",
        {"num_threads": 2, "decode": "spdl", "output_order": "input", "read_concurrency": 2},
        ("image",),
        grey_levels=2.0,
    ),
    "spdl_process": Entry(
        "loaders.SpdlLoader",
        {
            "num_threads": 2,
            "executor": "process",
            "output_order": "input",
            "read_concurrency": 2,
            "acquire": "coroutines",
        },
        ("image",),
    ),
    "records": Entry(ShardLoader, {"decode": "torch"}, server="files"),
    "nosql": Entry("loaders.nosql.NoSQLLoader", {"decode": "torch", "out_of_order": False}, server="database"),
    # With images alone: every one of its loaders starts a process that imports torch, in 2 s of a core.
    "mosaic": Entry(
        "loaders.mosaic.MosaicLoader",
        {"decode": "torch", "num_workers": 2},
        ("image",),
        server="loaders.mosaic",
        environment="mosaic",
    ),
    "streaming": Entry(
        "loaders.streaming.StreamingLoader",
        {"decode": "torch", "order": "strict", "slice_records": 2, "warm_bytes": 0},
        server="loaders.streaming",
    ),
    "streaming_emlio": Entry(
        "loaders.streaming.StreamingLoader",
        {"decode": "torch", "order": "strict", "slice_records": 0, "wire": "msgpack", "verify": False, "warm_bytes": 0},
        ("image", "segmentation"),
        server="loaders.streaming",
        daemon=("--threads", "2", "--high-water-mark", "1"),
    ),
    # With one worker: several send their batches as they come, in another order every time.
    "tfdata": Entry("loaders.tfdata.TfDataLoader", {"decode": "torch"}, server="loaders.tfdata", package="tensorflow"),
}
LOADERS = {name: entry for name, entry in TABLE.items() if not entry.package or find_spec(entry.package)}
"""Those that this environment can run."""


@dataclass(frozen=True)
class Data:
    """A dataset of the suite, and the pipeline that it is for."""

    samples: Samples
    pipeline: Pipeline
    shards: Path | None = None


@dataclass(frozen=True)
class Combination:
    """A line of the table with one of its pipelines."""

    loader: str
    entry: Entry
    data: Data
    endpoint: str | None

    def make(self, **options: Any) -> Any:
        """Return the loader."""
        return self.entry.make(self.data, options.pop("pipeline", self.data.pipeline), self.endpoint, **options)


QUICK = (
    "test_every_epoch_of_every_seed_gives_every_sample_once",
    "test_batches_are_what_the_pipeline_makes",
    "test_ranks_are_disjoint_and_complete",
    "test_a_killed_worker_is_named",
    "test_a_damaged_sample_is_named",
)
"""What is tested in every run of the loaders with a server of their own; the rest of them takes long."""
QUICKEST = tuple(name for name in QUICK if "ranks" not in name and "seed" not in name)
"""The same of processes that import torch whenever a loader is made: those of these tests that make one loader."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the other tests of the loaders whose servers and processes take seconds to start."""
    for item in items:
        id_ = getattr(getattr(item, "callspec", None), "id", "")
        servers = any(loader in id_ for loader in ("mosaic", "nosql", "tfdata"))
        quick = QUICK if servers else QUICKEST
        if (servers or "spdl_process" in id_) and not item.name.startswith(quick):
            item.add_marker(pytest.mark.slow)


Serve: TypeAlias = Callable[[Entry, Data], str | None]


@pytest.fixture(scope="session")
def collect() -> Callable[[Loader, int], list[Batch]]:
    """Runs one epoch."""
    return lambda loader, epoch: list(loader.epoch(epoch))


@pytest.fixture(params=[(loader, kind) for loader, entry in LOADERS.items() for kind in entry.pipelines], ids="-".join)
def any_pair(request: pytest.FixtureRequest, datasets: dict[str, Data], serve: Serve) -> Combination:
    """Every loader with every pipeline that it runs."""
    resource_tracker.ensure_running()  # Python's own process, which stays; it is no worker of the loader
    loader, kind = request.param
    return combination(loader, datasets[kind], serve)


@pytest.fixture(
    params=[(loader, kind) for loader, entry in LOADERS.items() if not entry.streams for kind in entry.pipelines],
    ids="-".join,
)
def any_file_pair(request: pytest.FixtureRequest, datasets: dict[str, Data]) -> Combination:
    """Every loader of files with every pipeline that it runs."""
    loader, kind = request.param
    return Combination(loader, LOADERS[loader], datasets[kind], None)


@pytest.fixture(params=list(LOADERS))
def any_loader(request: pytest.FixtureRequest, datasets: dict[str, Data], serve: Serve) -> Combination:
    """Every loader, with images."""
    return combination(request.param, datasets["image"], serve)


@pytest.fixture(params=[name if name == "pytorch" else pytest.param(name, marks=pytest.mark.slow) for name in LOADERS])
def all_pairs(request: pytest.FixtureRequest, datasets: dict[str, Data], serve: Serve) -> list[Combination]:
    """Every loader, with each of its pipelines."""
    return [combination(request.param, datasets[kind], serve) for kind in LOADERS[request.param].pipelines]


@pytest.fixture(params=[name for name, entry in LOADERS.items() if entry.runs_python])
def any_python(request: pytest.FixtureRequest, datasets: dict[str, Data], serve: Serve) -> Combination:
    """Every loader that runs a pipeline of one's own."""
    return combination(request.param, datasets["image"], serve)


def sharded(data: Data) -> Data:
    """The dataset with its shards."""
    root = data.samples.root
    return replace(data, shards=convert(data.samples, root.with_name(f"{root.name}-shards"), key=root.name, seed=3))


def combination(loader: str, data: Data, serve: Serve) -> Combination:
    entry = LOADERS[loader]
    return Combination(loader, entry, data, serve(entry, data))


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serves a dataset's shards for a loader that takes an endpoint, and returns that; by one daemon of the session.

    A daemon serves one folder with one set of options.
    """
    endpoints: dict[tuple[Path, str, tuple[str, ...]], str] = {}
    database: list[CassandraServer] = []

    def prepare(entry: Entry, shards: Path) -> Path:
        """Make the form of the samples that a daemon serves."""
        folder = tmp_path_factory.mktemp("form")
        argv = [python_of(entry.environment), "-m", entry.server, "prepare", "--root", shards, "--out", folder]
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        return folder

    def serve(entry: Entry, data: Data) -> str | None:
        if not entry.streams:
            return None
        assert data.shards is not None
        if entry.server == "files":
            return str(data.shards)
        key = (data.shards, entry.server, entry.daemon)
        if key in endpoints:
            return endpoints[key]
        if entry.server == "database":
            if not database:
                home = tmp_path_factory.mktemp("cassandra")
                database.append(stack.enter_context(CassandraServer(home, removes_home=True)))
            table = DatabaseTable(database[0].host, database[0].port, "acceptance", f"set_{len(endpoints)}")
            ingest(data.shards, table)
            endpoints[key] = table.endpoint
            return table.endpoint
        root, flags, client = data.shards, entry.daemon, None
        if entry.environment:
            root = prepare(entry, data.shards)
            daemon, client = make_keys(tmp_path_factory.mktemp("keys"))
            flags = (*flags, "--keys", str(daemon))
        argv = [sys.executable, "-m", entry.server, "serve", "--until-eof"]
        argv += ["--root", str(root), "--listen", "127.0.0.1:0", *flags]
        child = stack.enter_context(Child(argv, stderr=subprocess.DEVNULL))
        endpoints[key] = str(child.ready(READY_S)["endpoint"])
        if client is not None:
            KEYS[endpoints[key]] = client
        return endpoints[key]

    with ExitStack() as stack:
        yield serve


@pytest.fixture(scope="session")
def make_images(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Data]:
    """Makes a dataset of so many images."""

    def make(count: int, *, shards: bool = False) -> Data:
        root = tmp_path_factory.mktemp("images")
        samples = write_samples(root, [(f"class {k % 3}/{k:04d}.jpg", _jpeg(k)) for k in range(count)])
        data = Data(samples, ImageTransform(size=SIZE))
        return sharded(data) if shards else data

    return make


@pytest.fixture(scope="session")
def datasets(make_images: Callable[..., Data], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Data]:
    """Every kind of samples that there is a pipeline for, COUNT of each."""
    volumes, pictures, sounds = (tmp_path_factory.mktemp(kind) for kind in ("volumes", "pictures", "speech"))
    detection = DetectionPipeline(min_size=48, max_size=80, masks=False)
    lengths = [3000 + 1237 * k % 6000 for k in range(COUNT)]
    return {
        "image": make_images(COUNT, shards=True),
        "segmentation": sharded(Data(make_volumes(volumes, COUNT), SegmentationPipeline(crop=RandomCrop(16)))),
        "detection": sharded(Data(make_pictures(pictures, [_jpeg(k) for k in range(COUNT)]), detection)),
        "speech": sharded(Data(make_sounds(sounds, lengths), SpeechPipeline())),
    }


@pytest.fixture(scope="session")
def reference() -> Callable[[Data, Batch, int, int], Tensors]:
    """Runs the pipeline as it is over the samples of a batch: seed and epoch are the last two."""

    def run(data: Data, batch: Batch, seed: int, epoch: int) -> Tensors:
        items = [load_item(data.pipeline, data.samples, int(k), seed=seed, epoch=epoch) for k in batch.ids]
        return data.pipeline.collate(items)

    return run


@dataclass(frozen=True)
class Faulty(WrappedPipeline):
    """A pipeline of which one sample has a fault in its last step."""

    sample_id: int
    fault: str
    hangs_for_s: float = 30.0

    @property
    def transforms(self) -> tuple[Any, ...]:
        return *self.of.transforms, Trip(self)

    def collate(self, items: Any) -> Tensors:
        if self.fault == "collate" and self.sample_id in [item.id for item in items]:
            raise ValueError("no batch of these")
        return self.of.collate(items)


@dataclass(frozen=True)
class Trip:
    """The step that fails."""

    of: Faulty
    name: str = "Trip"

    def __call__(self, item: Item) -> Item:
        if item.id == self.of.sample_id:
            if self.of.fault == "raises":
                raise ValueError("what a transform may raise")
            if self.of.fault == "hangs":
                # A lock that nobody gives back, as a read of a dead mount is one.
                import threading

                threading.Event().wait(self.of.hangs_for_s)
            if self.of.fault == "shape":
                item.data = item.data[..., :-1]
        return item


@pytest.fixture(scope="session")
def faulty() -> type[Faulty]:
    """A pipeline with a fault in one sample."""
    return Faulty


def _jpeg(seed: int) -> bytes:
    width, height = (int(each) for each in np.random.default_rng(seed).integers(70, 160, 2))
    return encode_image(width, height, seed=seed, subsampling=0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine are joined faster by one thread than by all."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def table() -> dict[str, Entry]:
    """The loaders by name."""
    return LOADERS
