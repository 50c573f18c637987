"""What a textbook's section on the DataLoader bottleneck prints, and a run's answer to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from harness.report.folder import Results
from harness.report.rows import EpochRow
from harness.workloads.overlap import Overlap, simulate
from harness.workloads.published import STEPS

__all__ = ["CITATION", "OUTPUT_8_5_1", "Curve", "Measured", "Printed", "curves"]

CITATION: Final = "“Sharded Training Data and the DataLoader Bottleneck”, part II, chapter 8 of a textbook"
_WORKERS_KEY: Final = "num_workers"


@dataclass(frozen=True, slots=True)
class Printed:
    """One line of Output 8.5.1."""

    wall_ms: int
    utilisation_pct: float


OUTPUT_8_5_1: Final[Mapping[int, Printed]] = {
    1: Printed(5610, 35.7),
    2: Printed(2820, 70.9),
    3: Printed(2028, 98.6),
    4: Printed(2028, 98.6),
    6: Printed(2028, 98.6),
    8: Printed(2028, 98.6),
}
"""By number of workers: 200 steps of 10 ms, loads of 28 ms."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Epochs with one number of workers."""

    workers: int
    steps: int
    utilisation: tuple[float, ...]
    """Share of each epoch in which the step was at work, 0 to 1, the wait for the first batch included."""
    wall_s: tuple[float, ...]
    trusted: bool
    """Whether the epochs passed every validity rule."""

    @property
    def median(self) -> float:
        """Median utilisation."""
        return median(self.utilisation)


@dataclass(frozen=True, slots=True)
class Curve:
    """One workload over numbers of workers."""

    workload: str
    load_s: float
    compute_s: float
    """As the workload and the emulated step are set."""
    cap: int | None
    """Loads that may overlap; None for all of them."""
    points: tuple[Measured, ...]

    def predicted(self, workers: int, *, capped: bool = True) -> Overlap:
        """Return the model's epoch for a number of workers; `capped` is whether loads are kept from overlapping."""
        steps = next(iter(self.points)).steps
        return simulate(self.load_s, self.compute_s, workers=workers, steps=steps, cap=self.cap if capped else None)


def curves(results: Results) -> tuple[Curve, ...]:
    """Return a curve for every workload of the textbook's kind that has epochs, its points by number of workers.

    The first epoch of a cell is left out where there are others: it starts the workers.
    """
    configs: Mapping[str, Any] = results.config.get("workloads") or {}
    found = (_curve(results, str(key), config) for key, config in configs.items())
    return tuple(curve for curve in found if curve is not None)


def _curve(results: Results, workload: str, config: Mapping[str, Any]) -> Curve | None:
    accelerator: Mapping[str, Any] = results.config.get("accelerator") or {}
    step = STEPS.get(("textbook", str(accelerator.get("model"))))
    if step is None or "load_ms" not in config:
        return None
    batch_size = int(config.get("batch_size") or 1)
    points = []
    for key, variant in results.variants.items():
        workers = variant.section.get(_WORKERS_KEY)
        rows = [row for row in results.rows if (row.workload, row.loader) == (workload, key)]
        point = _measured(int(workers), rows, batch_size) if workers else None
        points += [point] if point else []
    if not points:
        return None
    return Curve(
        workload,
        float(config["load_ms"]) / 1e3,
        step.seconds_per_sample * batch_size * float(accelerator.get("time_scale") or 1.0),
        config.get("overlapping_loads"),
        tuple(sorted(points, key=lambda point: point.workers)),
    )


def _measured(workers: int, rows: Iterable[EpochRow], batch_size: int) -> Measured | None:
    whole = [row for row in rows if row.duration_s and row.samples and row.stall_s is not None]
    shown = [row for row in whole if row.is_valid] or whole
    shown = [row for row in shown if row.epoch > 1] or shown
    if not shown:
        return None
    known = [(row.duration_s or 0.0, row.stall_s or 0.0) for row in shown]
    return Measured(
        workers,
        -(-(shown[0].samples or 0) // batch_size),
        tuple(1 - stall_s / duration_s for duration_s, stall_s in known),
        tuple(duration_s for duration_s, _ in known),
        all(row.is_valid for row in shown),
    )
