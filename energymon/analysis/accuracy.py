"""How true a joule is: what a sensor was found to sample, what its maker and others say of it, and the state file.

The bound of a window's error says when the sensor was read. The accuracy says what the sensor itself does not see.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import StoreError
from energymon.reading import COUNTERS, ESTIMATE

STATE: Final = "ENERGYMON_STATE"
"""Environment variable that names the folder of calibrations.json."""
_FILE: Final = "calibrations.json"
_SHARED: Final = Path("/var/lib/energymon")
_APART: Final = 0.1
"""A counter and a power that differ by more than this share contradict each other."""


@dataclass(frozen=True, slots=True)
class SensorCalibration:
    """What a load of known edges showed of one source of a device."""

    device: str
    """"gpu-0", "package-0"."""
    domain: str
    source: str
    model: str
    """The board's or the processor's name."""
    uuid: str
    """Of a board; "" for others."""
    driver: str
    """The driver's version, or the kernel's release."""
    update_ms: float
    """Mean time between updates."""
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

    def __str__(self) -> str:
        seen = "does not follow the load"
        if self.window_ms is not None and self.duty is not None and self.delay_ms is not None:
            window = f"the mean of {self.window_ms:.4g} ms, {self.delay_ms:.0f} ms late"
            seen = f"a value is {window}, and {self.duty:.0%} of the time is sampled"
        return f"updated every {self.update_ms:.3g} ms; {seen}; {self.idle_w:.0f} W idle, {self.busy_w:.0f} W busy"

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

    def __str__(self) -> str:
        if self.share is None:
            return f"unknown: {self.origin}"
        parts = [f"± {self.share:.1%} of the joules"]
        parts += [f"± {self.unseen_w:.0f} W of the time"] if self.unseen_w else []
        parts += [f"± {self.edge_j:.1f} J for the edges"] if self.edge_j else []
        return f"{', '.join(parts)} ({self.origin})"

    def error_j(self, joules: float, span_ns: int) -> float | None:
        """Return the bound of the error, J, of joules that were used in a span, ns; None when it is unknown."""
        if self.share is None:
            return None
        return self.share * abs(joules) + self.unseen_w * span_ns / NS + self.edge_j


_STEADY: Final = 0.05
"""Error of steady power of the boards below, against an external meter (arXiv 2312.02741). NVIDIA documents the same
for Fermi and Kepler, and nothing for later boards (nvml.h, nvmlDeviceGetPowerUsage)."""
_STUDIED: Final = re.compile(r"\b(Tesla [KMPV]\d+|[PV]100|T4|A[1-9]\d*|RTX A\d+|GTX|TITAN|RTX [234]0\d\d|H100|H200)\b")
"""Names of boards of the architectures in that study; an H200 has an H100's chip."""
_ORIGIN: Final = "steady power ± 5 %: arXiv 2312.02741; sampling: calibrated"
_NO_RAPL: Final = "no error is documented for RAPL (Intel SDM vol. 3B, 15.10); compare it with a meter at the wall"
_NO_BOARD: Final = "no error of this board is published"
_ASK: Final = "nobody calibrated {} here, and boards may sample a quarter of the time: `python -m energymon calibrate`"


def accuracy_of(source: str, model: str, found: SensorCalibration | None, interval_ns: int) -> Accuracy:
    """Return the accuracy of a source.

    Args:
        source: One of reading.DIRECTNESS, no estimate.
        model: The board's name; "" for a processor.
        found: Its calibration, where there is one.
        interval_ns: Time between two ticks, ns: power is seen at the ticks alone.
    """
    if source.startswith("rapl"):
        why = _NO_RAPL
    elif not _STUDIED.search(model):
        why = _NO_BOARD
    elif found is None:
        why = _ASK.format(source)
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
        return Accuracy(share, (1 - seen) * found.swing_w, found.swing_w * late_ms / 1e3, _ORIGIN)
    else:
        why = f"{source} did not follow the load of the calibration"
    return Accuracy(None, 0.0, 0.0, why)


def describe(
    sensors: Iterable[Mapping[str, Any]],
    unknown: Mapping[tuple[str, Any], str],
    boards: str,
    calibrations: Mapping[str, SensorCalibration],
    interval_ns: int,
) -> dict[str, Any]:
    """Return what the windows over sensors need to know: these with their accuracy, parts without a figure, boards."""
    return {
        "sensors": [with_accuracy(one, calibrations, interval_ns) for one in sensors],
        "unreadable": [{"device": part[0], "domain": part[1], "reason": why} for part, why in unknown.items()],
        "boards": boards,
    }


def with_accuracy(
    described: Mapping[str, Any], calibrations: Mapping[str, SensorCalibration], interval_ns: int
) -> dict[str, Any]:
    """Return what a sensor says of itself with the accuracy of each channel, JSON types only."""
    channels = []
    for one in described.get("channels", ()):
        found = calibration_of(calibrations, described, one)
        known = accuracy_of(one["source"], one.get("model", ""), found, interval_ns)
        channels.append(one if one["source"] == ESTIMATE else {**one, "accuracy": asdict(known)})
    return {**described, "channels": channels}


def calibration_of(
    calibrations: Mapping[str, SensorCalibration], described: Mapping[str, Any], channel: Mapping[str, Any]
) -> SensorCalibration | None:
    """Return the calibration of a sensor's channel with the driver that it has now; None without one.

    Both are as sensors describe them. A board is known by its UUID; a processor's driver is not compared.
    """
    found = calibrations.get(key_of(channel.get("uuid") or channel["device"], channel["domain"], channel["source"]))
    if found is not None and found.uuid and found.driver != described.get("driver"):
        return None
    return found


def key_of(device: str, domain: str, source: str) -> str:
    """Return the name of a calibration in the file; `device` is a board's UUID."""
    return f"{device} {domain} {source}"


def state_folder() -> Path:
    """Return the folder that calibrations are written to: ENERGYMON_STATE, /var/lib/energymon for root, or the user's.

    The user's is energymon below XDG_STATE_HOME, or ~/.local/state without it. Raises StoreError for a user without a
    home.
    """
    if named := os.environ.get(STATE):
        return Path(named)
    if os.geteuid() == 0:
        return _SHARED
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "energymon"
    except RuntimeError as error:
        raise StoreError(f"calibrations: {error}; set {STATE} to a folder for them") from error


def load_calibrations() -> dict[str, SensorCalibration]:
    """Return the calibrations of this host by device, domain and source; a user has root's too, unless STATE is set.

    Raises StoreError for a file that holds something else.
    """
    found: dict[str, SensorCalibration] = {}
    folders = [] if os.environ.get(STATE) else [_SHARED]
    with suppress(StoreError):  # a service without a home has none of its own
        folders.append(state_folder())
    for folder in folders:
        path = folder / _FILE
        try:
            stored = json.loads(path.read_text())["calibrations"]
            names = {field.name for field in fields(SensorCalibration)}
            found |= {
                key: SensorCalibration(**{k: v for k, v in one.items() if k in names}) for key, one in stored.items()
            }
        except (FileNotFoundError, PermissionError):
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path}: holds no calibrations ({error!r}); remove it and run calibrate again") from error
    return found


def save_calibrations(new: Mapping[str, SensorCalibration]) -> Path:
    """Add calibrations to the file, which another replaces whole; return its path. Raises OSError and StoreError."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    merged = {**load_calibrations(), **new}
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=_FILE, delete=False) as fresh:
        json.dump({"calibrations": {key: asdict(one) for key, one in sorted(merged.items())}}, fresh, indent=1)
        fresh.flush()
        os.fsync(fresh.fileno())
        os.fchmod(fresh.fileno(), 0o644)
    Path(fresh.name).replace(path)
    return path
