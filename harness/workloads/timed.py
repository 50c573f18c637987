"""Workloads whose samples only take time: the textbook's loop (Code 8.5.1), and replays of published times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from harness.errors import CellError, ConfigError
from harness.system.values import check_count, check_number

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.synthetic_load import LightStep
    from loaders.pipeline.timed import TimedPipeline


_CLASSES = 1000
"""As many as any generated set of images has; the files of such a set are read."""


class _Lengths:
    """The part of workloads whose samples are the lengths of their files, before a model of one layer."""

    __slots__ = ()
    batch_size: int
    name: str

    def model(self) -> torch.nn.Module:
        """Return one linear layer."""
        import torch

        return torch.nn.Linear(1, _CLASSES)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross entropy."""
        import torch

        return torch.nn.functional.cross_entropy(model(batch.data), batch.labels)

    def check(self, batch: Batch) -> None:
        """Raise CellError for a label beyond the model's classes."""
        if (highest := int(batch.labels.max())) >= _CLASSES:
            raise CellError(f"workload {self.name}: a sample has label {highest}; expected at most {_CLASSES - 1}")

    def example(self) -> Batch:
        """Return files of no length."""
        import numpy as np
        import torch

        from loaders.base import Batch

        count = self.batch_size
        return Batch(np.arange(count), torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64), 0)


@dataclass(frozen=True, slots=True)
class Textbook(_Lengths):
    """Loads that sleep, before a model of one layer; the emulated step of 10 ms is what the textbook's loop has."""

    load_ms: float = 28.0
    """Time of one load, a whole batch (LOAD_MS of Code 8.5.1)."""
    overlapping_loads: int | None = None
    """Loads that may overlap whatever the number of workers (Exercise 8.5.2 has two); None for all."""
    batch_size: int = 1
    name: str = "textbook"

    def __post_init__(self) -> None:
        check_count(f"workloads.{self.name}.batch_size", self.batch_size)
        if self.overlapping_loads is not None:
            check_count(f"workloads.{self.name}.overlapping_loads", self.overlapping_loads)
        check_number(f"workloads.{self.name}.load_ms", self.load_ms, above=0, unit="milliseconds")

    @property
    def input_size(self) -> int | None:
        """None: a sample has no edge."""
        return None

    @property
    def transform(self) -> TimedPipeline:
        """A pipeline that sleeps as long as a load lasts."""
        from loaders.pipeline.timed import TimedPipeline

        return TimedPipeline(self.load_ms / 1e3 / self.batch_size, self.overlapping_loads)


@dataclass(frozen=True, slots=True)
class Replay(_Lengths):
    """Samples that sleep as long as those of another workload take by a paper, and steps of that workload.

    Sleeping costs no core, so a loader meets the published times with more workers than there are cores. A run is a
    model check: it tests whether the paper's numbers follow from each other, and measures no preprocessing.
    """

    times: str = ""
    """The published times of its samples, by paper, table and workload: minato/table2/unet3d; empty for `light_s`."""
    light_s: float = 0.0
    """Without `times`: seconds of every sample."""
    heavy_s: float = 0.0
    """Without `times`: seconds of a heavy sample in all."""
    heavy_share: float = 0.2
    """Of the samples, that are heavy."""
    source: str = ""
    """Without `times`: where these three come from."""
    time_scale: float = 1.0
    """Factor on the times of samples and on those of steps alike."""
    parts: int = 4
    """Steps that share a sample's time alike; a loader can set a sample aside between two of them."""
    batch_size: int = 3
    input_size: int | None = None
    """Edge of the workload's samples, of which its step is published; null where they have none."""
    seed: int = 0
    """Of which sample takes which of the published times."""
    name: str = "unet3d"
    """Of the workload that is replayed, by which its step is found."""

    def __post_init__(self) -> None:
        where = f"workloads.{self.name}"
        for key in ("parts", "batch_size"):
            check_count(f"{where}.{key}", getattr(self, key))
        for key in ("light_s", "heavy_s", "time_scale"):
            check_number(f"{where}.{key}", getattr(self, key))
        check_number(f"{where}.heavy_share", self.heavy_share, maximum=1)
        if bool(self.times) == bool(self.light_s):
            raise ConfigError(f"{where}: expected either times, such as minato/table2/unet3d, or light_s and heavy_s")
        if self.times:
            self._steps()
        elif self.heavy_s < self.light_s:
            raise ConfigError(
                f"{where}.heavy_s={self.heavy_s}: expected light_s={self.light_s} or more, which it includes"
            )

    @property
    def model_check(self) -> str:
        """The workload that is replayed, and where its times are published."""
        if not self.times:
            return f"{self.name}: {self.source}"
        paper, entry, _ = _published(self.times)
        return f"{self.name}: {entry['at']} of {paper}"

    @property
    def step_scale(self) -> float:
        """Factor on the time of steps."""
        return self.time_scale

    @property
    def transform(self) -> TimedPipeline:
        """A pipeline that sleeps as long as a sample takes."""
        from loaders.pipeline.synthetic_load import split
        from loaders.pipeline.timed import TimedPipeline

        return TimedPipeline(0.0, steps=split(self._steps(), self.parts))

    def _steps(self) -> tuple[LightStep, ...]:
        from loaders.pipeline.synthetic_load import HeavyStep, LightStep, ReplayStep, fit_times

        if not self.times:
            heavy = HeavyStep(self.heavy_s - self.light_s, self.time_scale, share=self.heavy_share)
            return LightStep(self.light_s, self.time_scale), heavy
        _, _, values = _published(self.times)
        try:
            pieces = fit_times(**values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"workloads.{self.name}.times={self.times}: {error}") from error
        return (ReplayStep(time_scale=self.time_scale, times=pieces, seed=self.seed),)


def _published(path: str) -> tuple[str, Mapping[str, Any], Mapping[str, float]]:
    """Return the paper, the table and the values in ms of a path such as minato/table2/unet3d; raises ConfigError."""
    import yaml

    paper, _, rest = path.partition("/")
    table, _, key = rest.partition("/")
    try:
        stored = yaml.safe_load(files("conf").joinpath("papers", f"{paper}.yaml").read_text(encoding="utf-8"))
        entry = stored["values"][table]
        return stored["name"], entry, entry["value"][key]
    except (KeyError, FileNotFoundError) as error:
        raise ConfigError(f"times={path}: conf/papers has none; expected such as minato/table2/unet3d") from error
