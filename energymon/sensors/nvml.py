"""GPU energy from NVML, a sensor a board."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from energymon.sensors.base import Discovery, Missing
from energymon.sensors.nvml_board import NvmlSensor
from energymon.sensors.nvml_library import NAME, CObject, load, unanswered
from energymon.sensors.updates import polled

_PROBE_S: Final = 0.3
_PROBE_LONGEST_S: Final = 1.5
_PROBE_STEP_S: Final = 0.001


def open_nvml(interval_ns: int, library: Path | None = None) -> Discovery:
    """Open every board that NVML shows, a sensor each; those without energy of their own are named in `missing`.

    `library` is loaded in place of the driver's. The counters are polled for 0.3 s, and for longer where they are
    slow, to learn how often they are updated.
    """
    nvml: CObject = load(library)
    if isinstance(nvml, Missing):
        return Discovery((), (nvml,))
    sensors: list[NvmlSensor] = []
    missing: list[Missing] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                if _is_sliced(nvml, index):
                    missing.append(_sliced(index))
                else:
                    sensors.append(NvmlSensor(nvml, index, interval_ns))
            except nvml.NVMLError as error:
                remedy = "check that nvidia-smi shows its power as this user"
                missing.append(Missing(NAME, f"gpu-{index}: {error}", remedy, ((f"gpu-{index}", "gpu"),)))
    except nvml.NVMLError as error:
        missing.append(unanswered(error))
    finally:
        # The sensors hold the library from here on.
        nvml.nvmlShutdown()
    _probe(sensors)
    if not sensors and not missing:
        missing.append(Missing(NAME, "the driver shows no GPU", "check nvidia-smi -L"))
    return Discovery(tuple(sensors), tuple(missing))


def _probe(sensors: Iterable[NvmlSensor]) -> None:
    """Poll all counters together until each has changed a few times, or time is up."""
    counting = [sensor for sensor in sensors if sensor.counter_shown() is not None]
    shown = polled(
        [sensor.counter_shown for sensor in counting],
        step_s=_PROBE_STEP_S,
        usual_s=_PROBE_S,
        longest_s=_PROBE_LONGEST_S,
    )
    for sensor, looks in zip(counting, shown, strict=True):
        sensor.learn_updates(looks, _PROBE_LONGEST_S)


def _is_sliced(nvml: CObject, index: int) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        # Boards that cannot be sliced answer so; one that has failed fails again when it is opened.
        return False
    return bool(current)


def _sliced(index: int) -> Missing:
    return Missing(
        NAME,
        f"gpu-{index} is in MIG mode, and its slices have no energy counter of their own",
        "switch MIG off (nvidia-smi -mig 0) to measure this board",
        ((f"gpu-{index}", "gpu"),),
    )
