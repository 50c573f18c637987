"""How true a joule is: what a sensor does not see or shows wrongly, as calibrated and published; and the state file."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import StoreError
from energymon.reading import COUNTERS, ESTIMATE

if TYPE_CHECKING:
    from energymon.sensors.base import Discovery

STATE: Final = "ENERGYMON_STATE"
"""Environment variable that names the folder of calibrations.json."""
_FILE: Final = "calibrations.json"
_SHARED: Final = Path("/var/lib/energymon")
_APART: Final = 0.1
"""A counter and a power that differ by more than this share contradict each other."""
_AS_READ: Final = 1.25
"""A time between updates below so many times that between readings is the reader's own."""
_MULTIPLES: Final = 3
"""Of a load's rate, and of a sensor's: higher harmonics of a step's power are small."""


@dataclass(frozen=True, slots=True)
class SensorCalibration:
    """What a load of known edges showed of one source of a device."""

    device: str
    """"gpu-0", "package-0"."""
    domain: str
    source: str
    model: str
    uuid: str
    """Of a board; "" for others."""
    driver: str
    """The driver's version, or the kernel's release."""
    update_ms: float
    """Mean time between updates; where they are as close as readings, or closer, that between readings."""
    read_ms: float
    """Median time between two readings: no time below is known better."""
    window_ms: float | None
    """How much time a value is the mean of; None where the value does not follow the load."""
    duty: float | None
    """Share of the time that is sampled, 0 to 1; below 1 the sensor is part-time."""
    delay_ms: float | None
    """From the end of that window until the value is seen."""
    idle_w: float
    """Of a board, with a CUDA context: without one it draws less."""
    busy_w: float
    misfit: float
    """Mean deviation of the values from the model over that from their median: 0 is a perfect fit, 1 is none."""
    updates: int
    """How many updates were seen."""
    ratio: float | None = None
    """Of a counter: its power under steady load over that of the device's power source; None without one."""
    made_ns: int = 0
    """When it was made, UTC ns: the newest one of a device counts."""

    def __str__(self) -> str:
        seen = "does not follow the load"
        if self.window_ms is not None and self.duty is not None and self.delay_ms is not None:
            window = f"the mean of {self.window_ms:.4g} ms, {self.delay_ms:.0f} ms late"
            seen = f"a value is {window}, and {self.duty:.0%} of the time is sampled"
        return f"updated every {self.update} ms; {seen}; {self.idle_w:.0f} W idle, {self.busy_w:.0f} W busy"

    @property
    def update(self) -> str:
        """Time between updates as a text, ms; "≤ 1.3" where the sensor is updated at least as often as it was read."""
        return f"{'≤ ' if self.update_ms < _AS_READ * self.read_ms else ''}{self.update_ms:.3g}"

    @property
    def swing_w(self) -> float:
        """How far apart idle and busy power are, W."""
        return abs(self.busy_w - self.idle_w)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far the joules of a source may be from the true ones, the time of its readings apart."""

    share: float | None
    """Of the joules; None where nobody documents it."""
    unseen_w: float
    """For the time that is not sampled, W: the power may have been anything between idle and busy meanwhile."""
    edge_j: float
    """For the delay, J: what the power before one edge of a window and before the other may differ by meanwhile."""
    origin: str
    """Where these are from, or why they are unknown."""
    swing_w: float = 0.0
    """For the time of missed ticks, W, of power that is seen at the ticks alone; 0 for a counter."""
    update_s: float = 0.0
    """Time between two updates of a sensor that samples a part of it; 0 for other sensors."""

    def __str__(self) -> str:
        if self.share is None:
            return f"unknown: {self.origin}"
        parts = [f"± {self.share:.1%} of the joules"]
        parts += [f"± {self.unseen_w:.0f} W of the time"] if self.unseen_w else []
        parts += [f"± {self.edge_j:.1f} J for the edges"] if self.edge_j else []
        return f"{', '.join(parts)} ({self.origin})"

    def error_j(self, joules: float, span_ns: int, missed: float = 0.0) -> float | None:
        """Return the bound of the error of joules, J, or None; ticks were missed in the share `missed` of the span."""
        if self.share is None:
            return None
        unseen_w = self.unseen_w + max(0.0, self.swing_w - self.unseen_w) * missed
        return self.share * abs(joules) + unseen_w * span_ns / NS + self.edge_j

    def resonance(self, period_s: float, span_s: float) -> str:
        """Return how a part-time sensor may see a load that repeats at one phase for all of a window; "" where not.

        It may where a multiple of the load's rate and one of the sensor's, up to the third, beat slower than the
        window, `span_s` s long. The load repeats after `period_s` s.
        """
        multiples = product(range(1, _MULTIPLES + 1), repeat=2)
        if not self.update_s or all(abs(k / period_s - m / self.update_s) * span_s >= 1 for k, m in multiples):
            return ""
        return (
            f"samples a part of each {self.update_s * 1e3:.3g} ms and may see a load of {period_s * 1e3:.3g} ms at one "
            "phase alone: its joules may be off by their whole accuracy"
        )


_STEADY: Final = 0.05
"""Error of steady power of the boards below, against an external meter (arXiv 2312.02741). NVIDIA documents the same
for Fermi and Kepler, and nothing for later boards (nvml.h, nvmlDeviceGetPowerUsage)."""
_STUDIED: Final = re.compile(r"\b(Tesla [KMPV]\d+|[PV]100|T4|A[1-9]\d*|RTX A\d+|GTX|TITAN|RTX [234]0\d\d|H100|H200)\b")
"""Names of boards of the architectures in that study; an H200 has an H100's chip."""
_UNPUBLISHED: Final = {
    "rapl": "no error is documented for RAPL (Intel SDM vol. 3B, 15.10); compare it with a meter at the wall",
    "hwmon": "the driver states no error (power1_accuracy)",
    "ipmi": "no error is published for the meters behind DCMI: ask the machine's maker",
    "redfish": "no error is published for the meters behind Redfish: ask the machine's maker",
    "tasmota": "plugs differ: calibrate it (tasmota.github.io/docs/Power-Monitoring-Calibration)",
    "shelly": "the plug's interface states no error: compare it with a calibrated meter",
}
"""Why the accuracy of RAPL and of a meter at the wall is unknown."""


def accuracy_of(source: str, model: str, found: SensorCalibration | None, interval_ns: int) -> Accuracy:
    """Return the accuracy of a source, no estimate, by its calibration and the board's name, "" for a processor.

    `interval_ns` is the time between two ticks: power is seen at the ticks alone.
    """
    if (kind := source.partition("-")[0]) in _UNPUBLISHED:
        why = _UNPUBLISHED[kind]
    elif not _STUDIED.search(model):
        why = "no error of this board is published"
    elif found is None:
        why = f"nobody calibrated {source} here, and boards may sample a quarter of the time: "
        why += "`python -m energymon calibrate`"
    elif source in COUNTERS and found.ratio is None:
        why = "nothing was beside the counter to compare it with in the calibration"
    elif found.ratio is not None and abs(found.ratio - 1) > _APART:
        why = f"the counter shows {found.ratio:.2f} times the board's own power"
    elif found.window_ms is not None and found.duty is not None and found.delay_ms is not None:
        share, seen, late_ms = _STEADY, found.duty, found.delay_ms
        if found.ratio is not None:
            share += abs(found.ratio - 1)
        else:
            # Two readings may show the same update, and each stands for all of the time until the next.
            seen *= min(1.0, found.window_ms / (found.update_ms + 2 * interval_ns / 1e6))
            late_ms += found.window_ms
        return Accuracy(
            share,
            unseen_w=(1 - seen) * found.swing_w,
            edge_j=found.swing_w * late_ms / 1e3,
            origin="steady power ± 5 %: arXiv 2312.02741; sampling: calibrated",
            swing_w=0.0 if source in COUNTERS else found.swing_w,
            update_s=found.update_ms / 1e3 if found.duty < 1 else 0.0,
        )
    else:
        why = f"{source} did not follow the load of the calibration"
    return Accuracy(None, 0.0, 0.0, why)


def describe(
    sensors: Iterable[Mapping[str, Any]],
    unknown: Mapping[tuple[str, Any], str],
    found: Discovery,
    calibrations: Mapping[str, SensorCalibration],
    interval_ns: int,
) -> dict[str, Any]:
    """Return what the windows over sensors need to know: these with their accuracy, parts without a figure, boards."""
    return {
        "sensors": [with_accuracy(one, calibrations, interval_ns) for one in sensors],
        "unreadable": [{"device": part[0], "domain": part[1], "reason": why} for part, why in unknown.items()],
        "boards": found.boards,
        "unsampled": [board._asdict() for board in found.unsampled],
    }


def with_accuracy(
    described: Mapping[str, Any], calibrations: Mapping[str, SensorCalibration], interval_ns: int
) -> dict[str, Any]:
    """Return what a sensor says of itself with the accuracy of each channel, JSON types only."""
    channels = []
    for one in described.get("channels", ()):
        found = calibration_of(calibrations, described, one)
        known = accuracy_of(one["source"], one.get("model", ""), found, interval_ns)
        if one.get("error_share") is not None:
            known = Accuracy(one["error_share"], 0.0, 0.0, "stated by the meter: power1_accuracy of hwmon")
        channels.append(one if one["source"] == ESTIMATE else {**one, "accuracy": asdict(known)})
    return {**described, "channels": channels}


def calibration_of(
    calibrations: Mapping[str, SensorCalibration], described: Mapping[str, Any], channel: Mapping[str, Any]
) -> SensorCalibration | None:
    """Return the calibration of a sensor's channel; None without one, and for a board that has another driver now."""
    key = key_of(channel.get("uuid", ""), channel["device"], channel["domain"], channel["source"])
    found = calibrations.get(key)
    other_driver = found is not None and found.uuid and found.driver != described.get("driver")
    return None if other_driver else found


def key_of(uuid: str, device: str, domain: str, source: str) -> str:
    """Return the name of a calibration in the file: by a board's UUID, else by host, as hosts may share a home."""
    return f"{uuid or f'{platform.node()} {device}'} {domain} {source}"


def state_folder() -> Path:
    """Return the folder that calibrations are written to; raises StoreError for a user without a home."""
    if named := os.environ.get(STATE):
        return Path(named)
    if os.geteuid() == 0:
        return _SHARED
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "energymon"
    except RuntimeError as error:
        raise StoreError(f"calibrations: {error}; set {STATE} to a folder for them") from error


def load_calibrations(report: Callable[[str], object]) -> dict[str, SensorCalibration]:
    """Return the calibrations of this host by `key_of`; a user has root's too, unless STATE is set, the newest of each.

    `report` gets a line for a file that holds something else, which is left out.
    """
    found: dict[str, SensorCalibration] = {}
    folders = [] if os.environ.get(STATE) else [_SHARED]
    with suppress(StoreError):  # a service without a home has none of its own
        folders.append(state_folder())
    for folder in folders:
        try:
            own = _stored(folder / _FILE)
        except StoreError as error:
            report(str(error))
            continue
        found |= {key: one for key, one in own.items() if key not in found or found[key].made_ns <= one.made_ns}
    return found


def save_calibrations(new: Mapping[str, SensorCalibration]) -> Path:
    """Add calibrations to the user's file; return its path; raises OSError, and StoreError for another kind of file."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    merged = {**_stored(path), **new}
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=_FILE, delete=False) as fresh:
        json.dump({"calibrations": {key: asdict(one) for key, one in sorted(merged.items())}}, fresh, indent=1)
        fresh.flush()
        os.fsync(fresh.fileno())
        os.fchmod(fresh.fileno(), 0o644)
    Path(fresh.name).replace(path)
    return path


def _stored(path: Path) -> dict[str, SensorCalibration]:
    """Return what a file holds, which may not be there or be another user's; raises StoreError for something else."""
    names = {field.name for field in fields(SensorCalibration)}
    try:
        stored = json.loads(path.read_text())["calibrations"]
        return {key: SensorCalibration(**{k: v for k, v in one.items() if k in names}) for key, one in stored.items()}
    except (FileNotFoundError, PermissionError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: holds no calibrations ({error!r}); remove it and run calibrate again") from error
