"""What a run's workloads are trained on: every dataset opened once, placed on the nodes, and stored with the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.config.specs import ComponentSpec, Experiment, LoaderSpec
from harness.config.targets import instantiate
from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import storage_errors
from harness.datasets.generate import GeneratedDataset
from harness.datasets.placement import HALF_SHARDS, PlacedData, Role, is_cut, open_shards, place
from harness.errors import ConfigError, DatasetError
from harness.results.cells import DatasetRecord
from harness.results.preparation import Preparation, store_preparations
from harness.run.daemon import Keys
from harness.run.prepare import ConversionMeter, PreparedForm, check_forms, open_forms
from harness.system.disk import free_bytes, spelled
from loaders.errors import LoaderError


@dataclass(frozen=True, slots=True)
class OpenData:
    """A dataset on disk and on its nodes."""

    handle: DatasetHandle
    placed: PlacedData
    shards: Path | None
    """The folder of all its shards; None where nothing is streamed and nothing is cut in half."""
    preparation: Preparation | None = None
    """What converting it to shards cost; None where it was not, or where that is not known."""
    forms: Mapping[str, PreparedForm] = field(default_factory=dict)
    """What daemons serve in place of shards, by the daemons' modules."""

    @property
    def preparations(self) -> list[Preparation]:
        """The known costs of its shards and forms."""
        return [one for one in (self.preparation, *(form.preparation for form in self.forms.values())) if one]

    def served_to(self, loader: LoaderSpec) -> Path:
        """Return the folder that the daemon of a loader that is streamed to serves."""
        if (form := self.forms.get(loader.daemon["module"])) is not None:
            return form.folder
        assert self.shards is not None
        return self.shards

    def describe(self) -> DatasetRecord:
        """Return what every cell on it stores."""
        return DatasetRecord(
            name=self.handle.name,
            samples=len(self.handle.samples),
            bytes=int(self.handle.samples.sizes.sum()),
            skipped=len(self.handle.skipped),
            content_hash=self.handle.content_hash,
        )

    def provenance(self) -> dict[str, object]:
        """Return the part of provenance.json: where the samples come from, and the files that were left out."""
        about = {"name": self.handle.name, "content_hash": self.handle.content_hash, **self.handle.describe}
        return about | {"skipped": list(self.handle.skipped)}

    def store(self, folder: Path, suffix: str, keys: Mapping[str, Keys]) -> StoredData:
        """Write samples.parquet, and placement.parquet where both nodes have samples.

        `suffix` keeps the files of several datasets apart.
        """
        samples_file = folder / f"samples{suffix}.parquet"
        self.handle.samples.save(samples_file)
        split_files: dict[Role, Path] = {}
        if self.placed.split:
            split_files["compute"] = folder / f"placement{suffix}.parquet"
        if self.placed.kind == "sharded":
            split_files["storage"] = folder / f"placement{suffix}-storage.parquet"
        for role, path in split_files.items():
            self.placed.seen_from(role, self.handle.samples).save(path)
        return StoredData(self, samples_file, split_files, keys)


@dataclass(frozen=True, slots=True)
class StoredData:
    """A dataset whose samples the run's folder lists, for its cells."""

    opened: OpenData
    samples_file: Path
    """The samples by their paths below one root."""
    split_samples_files: Mapping[Role, Path]
    """The samples by their paths below `local/`, `remote/`, `remote-2/`, …, by the role of the node that reads them."""
    keys: Mapping[str, Keys]
    """The run's keys, by the daemon's module."""


@dataclass(frozen=True, slots=True)
class RunData:
    """The datasets of a run, by workload; workloads that share one share the object."""

    by_workload: Mapping[str, OpenData]

    @property
    def each(self) -> tuple[OpenData, ...]:
        """Every dataset once."""
        return tuple({id(data): data for data in self.by_workload.values()}.values())

    @property
    def content_hash(self) -> str:
        """Hash over the datasets. The hash of a single dataset is its own."""
        if len(self.each) == 1:
            return self.each[0].handle.content_hash
        told = " ".join(f"{key}={data.handle.content_hash}" for key, data in sorted(self.by_workload.items()))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def provenance(self) -> dict[str, object]:
        """Return the part of provenance.json on the dataset, or on each of several by its name."""
        if len(self.each) == 1:
            return self.each[0].provenance()
        skipped = [path for data in self.each for path in data.handle.skipped]
        return {data.handle.name: data.provenance() for data in self.each} | {"skipped": skipped}

    def store(self, folder: Path, keys: Mapping[str, Keys]) -> dict[str, StoredData]:
        """Write every dataset's samples into the run's folder; returns where the cells of each workload find theirs."""
        store_preparations(folder, [one for data in self.each for one in data.preparations])
        several = len(self.each) > 1
        stored = {
            id(data): data.store(folder, f"-{data.handle.name}-{data.handle.content_hash[:8]}" if several else "", keys)
            for data in self.each
        }
        return {key: stored[id(data)] for key, data in self.by_workload.items()}


def open_data(experiment: Experiment, cache: Path, progress: Progress, storages: int = 1) -> RunData:
    """Open, and make where needed, every dataset of an experiment that so many storage nodes serve.

    Raises ConfigError for a batch larger than its dataset and a daemon that cannot serve parts of one, DatasetError as
    the datasets do.
    """
    check_forms(experiment, storages)
    _check_room(experiment, cache, storages)
    opened: list[tuple[ComponentSpec, OpenData]] = []
    for component in experiment.datasets.values():
        if all(component != known for known, _ in opened):
            opened.append((component, _open(experiment, component, cache, progress, storages)))
    found = {
        key: next(data for known, data in opened if known == component)
        for key, component in experiment.datasets.items()
    }
    for key, workload in experiment.workloads.items():
        handle = found[key].handle
        check_batch(key, workload.params.get("batch_size", 1), len(handle.samples), handle.name)
    return RunData(found)


def check_batch(key: str, batch_size: int, samples: int, dataset: str) -> None:
    """Raise ConfigError for a batch that is larger than a dataset of so many samples."""
    if batch_size > samples:
        raise ConfigError(
            f"workloads.{key}.batch_size={batch_size} is larger than the dataset ({dataset}): expected at most "
            f"{samples}"
        )


def _check_room(experiment: Experiment, cache: Path, storages: int) -> None:
    """Refuse datasets for which there is no room, with their shards, before the first of them is made."""
    needed, keys = 0, []
    converted = is_cut(experiment.placement, storages) or experiment.streams
    seen: list[ComponentSpec] = []
    for key, component in experiment.datasets.items():
        if component in seen:
            continue
        seen.append(component)
        dataset = instantiate(component.target, component.params)
        if isinstance(dataset, GeneratedDataset) and (made := dataset.bytes_to_make(cache)):
            needed += made * (2 if converted else 1)
            keys.append(f"{experiment.dataset_key(key)}.samples={component.params.get('samples')}")
    free = free_bytes(cache)
    if needed > free:
        raise DatasetError(
            f"{' and '.join(keys)}: about {spelled(needed)} are needed in {cache}"
            f"{', shards included' if converted else ''}, and {spelled(free)} are free; "
            "ask for fewer, make room, or set cache_dir to a larger file system"
        )


def _open(experiment: Experiment, component: ComponentSpec, cache: Path, progress: Progress, storages: int) -> OpenData:
    handle: DatasetHandle = instantiate(component.target, component.params).open(cache, progress)
    cut = is_cut(experiment.placement, storages)
    shards = preparation = None
    forms: Mapping[str, PreparedForm] = {}
    if cut or experiment.streams:
        meter = ConversionMeter(experiment.energy)
        try:
            shards = open_shards(handle, cache, progress, HALF_SHARDS * storages if cut else 1, meter.measure)
            with storage_errors(shards):
                preparation = meter.keep(handle, shards)
            forms = open_forms(experiment, handle, shards, cache, progress)
        except LoaderError as error:
            raise DatasetError(str(error)) from error
    placed = place(experiment.placement, handle, shards, cache, progress, storages)
    return OpenData(handle, placed, shards, preparation, forms)
