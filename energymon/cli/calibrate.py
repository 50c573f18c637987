"""Puts devices under a load with known edges, and stores and shows what their sensors make of it."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from energymon.analysis.accuracy import SensorCalibration, accuracy_of, key_of, save_calibrations
from energymon.analysis.calibration import Look, calibrate, compared
from energymon.clock.monotonic import NS
from energymon.errors import OptionError, SensorError
from energymon.reading import COUNTERS
from energymon.sensors.base import Sensor, SensorChannel
from energymon.sensors.discover import SensorConfig, discover
from joulefeed.child import Child, ChildError
from joulefeed.table import Table, TableColumn, to_text

_WARM_S: Final = 120.0
"""How long importing torch and warming a board up may take."""
_IDLE_S: Final = 3.0
"""Before the load and after the step."""
_STEP_S: Final = 4.0
_SQUARES_S: Final = (0.25, 0.13, 0.07, 0.035, 0.017)
"""Half periods of the square waves, above and below the 20 and 100 ms in which boards are updated."""
_SQUARE_S: Final = 2.6
"""How long each of them lasts."""
_TAIL_S: Final = 1.5
_LATE_S: Final = 20.0
_GPU_STEP_S: Final = 0.001
_CPU_STEP_S: Final = 0.0003
"""Between two readings of RAPL, which is updated every millisecond."""
_ASSUMED_NS: Final = 100_000_000
"""Ticks of the accuracy that is shown."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A board, or all processors, put under load at once, and the sensors that see it."""

    name: str
    """"gpu-0" or "cpu"."""
    kind: Literal["gpu", "cpu"]
    sensors: Sequence[Sensor]
    about: tuple[str, str, str]
    """Model, UUID and driver."""

    @property
    def channels(self) -> list[SensorChannel]:
        return [channel for sensor in self.sensors for channel in sensor.channels]


def run_calibrate(config: SensorConfig, devices: Sequence[str], raw: Path | None, *, as_json: bool) -> int:
    """Calibrate the devices of this host, all or those that are named; return 1 where a source failed, else 0.

    `raw` is a folder for the readings of each device and its load, as NumPy archives. Raises OptionError for a device
    that is not there, SensorError where there is none, StoreError and OSError.
    """
    if raw is not None:
        raw.mkdir(parents=True, exist_ok=True)
    found = discover(config._replace(estimate=False), _ASSUMED_NS)
    try:
        targets = list(_targets(found.sensors))
        names = [target.name for target in targets]
        if not targets:
            gaps = "".join(f"\n  {gap}" for gap in found.missing)
            raise SensorError(f"nothing on this host measures energy, and so nothing can be calibrated:{gaps}")
        if unknown := sorted(set(devices) - set(names)):
            raise OptionError(f"--device {', '.join(unknown)}: expected some of {', '.join(names)}")
        # What cannot be stored is not worth minutes of load.
        path = save_calibrations({})
        calibrations: list[SensorCalibration] = []
        failed: dict[str, str] = {}
        for target in targets:
            if devices and target.name not in devices:
                continue
            print(f"energymon: {target.name} is under load for {_duration_s():.0f} s", file=sys.stderr, flush=True)
            try:
                looks, load = _watched(target)
            except (SensorError, ChildError) as error:
                failed[target.name] = f"{target.name}: {error}"
                continue
            if raw is not None:
                # Rows of begin and end, ns, and value.
                arrays: dict[str, Any] = {" ".join(of): np.array(rows).reshape(-1, 3) for of, rows in looks.items()}
                np.savez_compressed(raw / f"{target.name}.npz", load=np.array(load, dtype=np.int64), **arrays)
            for channel, seen in looks.items():
                try:
                    calibrations.append(calibrate(seen, load, (*channel,), target.about))
                except SensorError as error:
                    failed[" ".join(channel)] = str(error)
    finally:
        found.close()
    calibrations = [replace(one, made_ns=time.time_ns()) for one in compared(calibrations)]
    # Shown first: a disk may have become full meanwhile.
    lines = [*table_of(calibrations), *(f"failed: {why}" for why in failed.values()), f"to be stored in {path}"]
    shown = {"calibrations": [asdict(c) for c in calibrations], "failed": failed, "file": str(path)}
    print(json.dumps(shown) if as_json else "\n".join(lines), flush=True)
    save_calibrations({key_of(c.uuid, c.device, c.domain, c.source): c for c in calibrations})
    return 1 if failed or not calibrations else 0


def table_of(calibrations: Sequence[SensorCalibration]) -> list[str]:
    """Return a table with a line a source, and below it what a user should know of each."""
    rows = []
    for c in calibrations:
        name = c.device if c.domain in ("cpu", "gpu") else f"{c.device} {c.domain}"
        found = ((c.window_ms, ".3g"), (c.duty, ".0%"), (c.delay_ms, ".2g"))
        model = ["unknown" if value is None else format(value, form) for value, form in found]
        watts = f"{c.idle_w:.1f}", f"{c.busy_w:.1f}"
        rows.append([name, c.source, c.update, *model, f"{c.read_ms:.2g}", *watts, f"{c.misfit:.2f}"])
    if not rows:
        return []
    texts = [TableColumn("device", left=True), TableColumn("source", left=True)]
    numbers = ["update ms", "window ms", "sampled", "delay ms", "± ms", "idle W", "busy W", "misfit"]
    table = Table([*texts, *numbers], rows)
    return [*to_text(table).split("\n"), *(line for c in calibrations for line in remarks(c))]


def remarks(found: SensorCalibration) -> Iterator[str]:
    """Yield what a user should know of a calibrated source."""
    name = f"{found.device} {found.source}"
    if found.window_ms is None:
        yield f"{name}: does not follow the load; nothing is known of what it samples"
        return
    if found.duty is not None and found.duty < 1:
        rhythms = ", ".join(f"{found.update_ms / k:.3g}" for k in (1, 2, 3))
        yield (
            f"{name}: samples {found.duty:.0%} of the time; a load that repeats every {rhythms} ms or so is seen at "
            f"the same phase each time, and its power is wrong by up to {found.swing_w:.0f} W"
        )
    if found.source in COUNTERS and found.ratio is not None:
        yield f"{name}: shows {found.ratio:.3f} times the board's own power under steady load"
    yield f"{name}: accuracy {accuracy_of(found.source, found.model, found, _ASSUMED_NS)}"


def _targets(sensors: Sequence[Sensor]) -> Iterator[_Target]:
    """Yield each board, and all processors together."""
    others = []
    for sensor in sensors:
        if sensor.channels[0].domain in ("gpu", "module"):
            described: Mapping[str, Any] = sensor.describe()
            about = described["model"], described["uuid"], described["driver"]
            yield _Target(sensor.channels[0].device, "gpu", [sensor], about)
        else:
            others.append(sensor)
    if others:
        yield _Target("cpu", "cpu", others, (_processor(), "", platform.release()))


def _processor() -> str:
    """Return the name that the kernel gives the processor; the machine's where it gives none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _duration_s() -> float:
    return 2 * _IDLE_S + _STEP_S + _SQUARE_S * len(_SQUARES_S) + _TAIL_S


def spans_from(start_ns: int) -> list[tuple[int, int]]:
    """Return when the device is to be busy: a step, and square waves of falling periods, monotonic ns."""
    spans = [(_IDLE_S, _IDLE_S + _STEP_S)]
    at_s = 2 * _IDLE_S + _STEP_S
    for half_s in _SQUARES_S:
        for _ in range(int(_SQUARE_S / (2 * half_s))):
            spans.append((at_s, at_s + half_s))
            at_s += 2 * half_s
    return [(start_ns + round(begin_s * NS), start_ns + round(end_s * NS)) for begin_s, end_s in spans]


def _watched(target: _Target) -> tuple[dict[SensorChannel, list[Look]], list[tuple[int, int]]]:
    """Put a target under load; return what its channels showed and when it was busy; raises ChildError, SensorError."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": target.about[1]} if target.kind == "gpu" else None
    argv = [sys.executable, "-m", "energymon.cli.load", target.kind]
    with Child(argv, env=env, keep_stderr=True, group_killed_with_parent=True) as child:
        ready = child.ready(_WARM_S)
        if not ready.get("ready"):
            raise SensorError(f"it cannot be put under load: {ready.get('message')}")
        spans = spans_from(time.monotonic_ns())
        answers: list[list[list[Any]]] = [[] for _ in target.sensors]
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                for sensor, raws in zip(target.sensors, answers, strict=True):
                    raws.append(sensor.sample())
                time.sleep(_GPU_STEP_S if target.kind == "gpu" else _CPU_STEP_S)

        reader = threading.Thread(target=read, name="calibrate")
        reader.start()
        try:
            child.send(json.dumps(spans).encode() + b"\n")
            line = child.read_line(_duration_s() + _LATE_S)
            time.sleep(_TAIL_S)
        finally:
            stop.set()
            reader.join()
        if line is None:
            raise ChildError(f"the load took more than {_duration_s() + _LATE_S:.0f} s")
        load = [(int(begin_ns), int(end_ns)) for begin_ns, end_ns in json.loads(line)]
    looks: dict[SensorChannel, list[Look]] = {channel: [] for channel in target.channels}
    for sensor, raws in zip(target.sensors, answers, strict=True):
        for raw in raws:
            for point in sensor.decode(raw, 0):
                value = point.watts if point.watts is not None else point.joules
                if value is not None:
                    looks[point.channel].append(Look(raw[0], raw[-1], value))
    return looks, load
