"""GPU energy from NVML: the board's own counter where it has one, integrated power otherwise."""

from __future__ import annotations

import ctypes
import importlib
import time
from types import ModuleType
from typing import Any, Final

from energymon.clock import Clock
from energymon.counter import Counter, PowerIntegral
from energymon.errors import CounterError
from energymon.reading import LAG_S
from energymon.sensors.base import Channel, Discovery, Missing, Point

__all__ = ["NvmlSensor", "open_nvml"]

_NAME: Final = "nvml"
_DEFAULT_MODULE: Final = "pynvml"
_JOULES_PER_MJ: Final = 1e-3
_WATTS_PER_MW: Final = 1e-3
_MAX_BOARD_W: Final = 3000.0
"""Above what any board or GPU module draws."""


class _Gpu:
    """One board."""

    __slots__ = ("_counter", "_handle", "_integral", "_nvml", "channel", "name", "uuid")

    def __init__(self, nvml: Any, index: int, interval_ns: int) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.name = _text(nvml.nvmlDeviceGetName(self._handle))
        self.uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
        self._counter: Counter | None = None
        self._integral: PowerIntegral | None = None
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            source = "nvml-counter"
            # 64 bits of millijoules do not wrap in the life of a machine.
            self._counter = Counter(unit_j=_JOULES_PER_MJ, wrap=None, max_w=_MAX_BOARD_W, lag_s=LAG_S[source])
        except nvml.NVMLError:
            nvml.nvmlDeviceGetPowerUsage(self._handle)
            source = "nvml-power"
            self._integral = PowerIntegral(interval_ns=interval_ns)
        self.channel = Channel(f"gpu-{index}", "gpu", source)

    def read(self, clock: Clock) -> Point:
        before_ns = time.monotonic_ns()
        now_ns, joules, flags, problem = before_ns, None, "", ""
        try:
            if self._counter is not None:
                shown = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
                now_ns = (before_ns + time.monotonic_ns()) // 2
                joules, flags = self._counter.update(shown, now_ns)
            elif self._integral is not None:
                shown = self._nvml.nvmlDeviceGetPowerUsage(self._handle)
                now_ns = (before_ns + time.monotonic_ns()) // 2
                joules, flags = self._integral.update(shown * _WATTS_PER_MW, now_ns)
        except (self._nvml.NVMLError, CounterError) as error:
            problem = f"{self.channel.device} ({self.uuid}): {error}"
        return Point(self.channel, now_ns + clock.offset_ns, joules, flags, problem)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class NvmlSensor:
    """Every board of the host."""

    name = _NAME

    def __init__(self, nvml: Any, gpus: list[_Gpu], driver: str) -> None:
        self._driver = driver
        self._nvml = nvml
        self._gpus = gpus
        self._open = True
        self.channels = tuple(gpu.channel for gpu in gpus)

    def read(self, clock: Clock) -> list[Point]:
        """Read every board."""
        return [gpu.read(clock) for gpu in self._gpus]

    def describe(self) -> dict[str, object]:
        """Return each board's model and UUID, and the driver's version."""
        return {
            "sensor": self.name,
            "driver": self._driver,
            "channels": [
                {
                    "device": gpu.channel.device,
                    "domain": "gpu",
                    "source": gpu.channel.source,
                    "model": gpu.name,
                    "uuid": gpu.uuid,
                }
                for gpu in self._gpus
            ],
        }

    def close(self) -> None:
        """Shut NVML down."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()


def open_nvml(interval_ns: int, module: str = _DEFAULT_MODULE) -> Discovery:
    """Open every board that NVML shows; those that have no energy of their own are named in `missing`.

    `module` is imported for NVML's functions under their own names. Importing pynvml takes 50 ms, so the
    driver's library is looked for first.
    """
    nvml = _load(module)
    if isinstance(nvml, Missing):
        return Discovery(None, (nvml,))
    try:
        nvml.nvmlInit()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        boards = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        gap = Missing(_NAME, f"the driver answers: {error}", "check that nvidia-smi works as this user")
        return Discovery(None, (gap,))
    gpus: list[_Gpu] = []
    missing: list[Missing] = []
    for index in range(boards):
        try:
            if _is_sliced(nvml, index):
                missing.append(
                    Missing(
                        _NAME,
                        f"gpu-{index} is in MIG mode, and its slices have no energy counter of their own",
                        "switch MIG off (nvidia-smi -mig 0) to measure this board",
                    )
                )
                continue
            gpus.append(_Gpu(nvml, index, interval_ns))
        except nvml.NVMLError as error:
            missing.append(
                Missing(_NAME, f"gpu-{index}: {error}", "check that nvidia-smi shows its power as this user")
            )
    if gpus:
        return Discovery(NvmlSensor(nvml, gpus, driver), tuple(missing))
    nvml.nvmlShutdown()
    if not missing:
        missing.append(Missing(_NAME, "the driver shows no GPU", "check nvidia-smi -L"))
    return Discovery(None, tuple(missing))


def _load(module: str) -> ModuleType | Missing:
    if module == _DEFAULT_MODULE:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return Missing(_NAME, "libnvidia-ml.so.1 is not on this host", "GPUs need the NVIDIA driver installed")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        return Missing(_NAME, f"{error}", "install nvidia-ml-py")


def _is_sliced(nvml: Any, index: int) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        # Boards that cannot be sliced answer so; one that has failed tells it again when it is opened.
        return False
    return bool(current)
