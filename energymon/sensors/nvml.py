"""GPU energy from NVML, a sensor a board: its own counter, and its power integrated beside it or in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.reading import LAG_S, Domain
from energymon.sensors.base import Discovery, Missing, Operation, Raw, Sensor, SensorChannel, SensorPoint
from energymon.sensors.boards import ALL, Board, choose_boards, name_boards
from energymon.sensors.counter import Counter, DeviceSeries, PowerIntegral
from energymon.sensors.nvml_library import AVERAGE_POWER, ENERGY, INSTANT_POWER, NAME, NvmlCall, load, unanswered
from energymon.sensors.updates import lag_of, period_ms, polled

_PROBE_LONGEST_S: Final = 1.5
_SOURCES: Final = {ENERGY: "nvml-counter", INSTANT_POWER: "nvml-power", AVERAGE_POWER: "nvml-power-average"}
_USAGE_LAG_S: Final = 1.0
"""nvmlDeviceGetPowerUsage averages over a second on most chips since Ampere (nvml.h)."""
_MODULES: Final = ("GH200", "GB200")
"""Boards whose counter covers the module: GPU, CPU and memory. What the GPU draws of it is power alone."""


class NvmlSensor(Sensor):
    """One board."""

    def __init__(self, nvml: Any, index: int, interval_ns: int) -> None:
        """Open a board; raises NVMLError for one that gives neither energy nor power."""
        self._nvml = nvml
        self.name = f"{NAME} gpu-{index}"
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, model = nvml.nvmlDeviceGetUUID(self._handle), nvml.nvmlDeviceGetName(self._handle)
        self._driver = nvml.nvmlSystemGetDriverVersion()
        self.board = Board(f"gpu-{index}", uuid, model, _slices(nvml, self._handle))
        self._module = any(name in model for name in _MODULES)
        self._calls = list(self._plan(interval_ns))
        self.series = [series for _, several in self._calls for series in several]
        powers = [series.integral for series in self.series if series.integral is not None]
        if len(powers) == len(self.series):
            # Ticks are then taken at a random moment.
            for power in powers:
                power.dither_ns = interval_ns
        self.counter_period_ms: float | None = None
        self._failed = False
        self._renewed_ns = 0
        # This board's own hold on the library: NVML counts them.
        nvml.nvmlInit()
        self._open = True
        self._bind()

    def sample(self) -> Raw:
        """Return [t, answer, t, …, t], the answers between monotonic times, ns: bytes, or NVML's return code."""
        if self._failed:
            self._renew()
        now_ns = time.monotonic_ns
        raw: Raw = [now_ns()]
        for call, _ in self._calls:
            code = call.function(*call.arguments)
            if code:
                self._failed = True
            raw += code or bytes(call.buffer), now_ns()
        return raw

    def operations(self) -> Sequence[Operation] | None:
        """Return the calls; None while the board fails."""
        return None if self._failed else [call.operation for call, _ in self._calls]

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return a point of each channel, at the value's own time where it is plausible."""
        points: list[SensorPoint] = []
        for at, (call, several) in enumerate(self._calls):
            before_ns, answer, after_ns = raw[2 * at : 2 * at + 3]
            shown = call.shown(answer) if isinstance(answer, bytes) else [(answer, 0, 0)] * len(several)
            for series, (code, value, t_utc_ns) in zip(several, shown, strict=True):
                if code:
                    self._failed = True
                    why = str(self._nvml.NVMLError(code))
                    points.append(series.unread(why, (before_ns + after_ns) // 2 + offset_ns))
                else:
                    points.append(series.point(value, t_utc_ns - offset_ns, before_ns, after_ns, offset_ns))
        return points

    def describe(self) -> dict[str, Any]:
        """Return model and UUID, what the counter covers and how often it is updated, and the slices in MIG mode."""
        named = {"model": self.board.model, "uuid": self.board.uuid}
        return {
            "sensor": NAME,
            "driver": self._driver,
            **named,
            "module_power": self._module,
            "slices": self.board.slices,
            "counter_period_ms": self.counter_period_ms,
            "channels": [{**series.describe(), **named} for series in self.series],
        }

    def close(self) -> None:
        """Give the library back; may be called twice."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def counter_shown(self) -> int | None:
        """Return the counter's value now, mJ; None when the board has none."""
        for call, several in self._calls:
            for i, series in enumerate(several):
                if series.counter is not None and not call.function(*call.arguments):
                    code, value, _ = call.shown(bytes(call.buffer))[i]
                    return None if code else value
        return None

    def _plan(self, interval_ns: int) -> Iterator[tuple[NvmlCall, list[DeviceSeries]]]:
        """Yield the calls that give most of this board: one for all where it knows the fields."""
        nvml = self._nvml
        whole: Domain = "module" if self._module else "gpu"
        answered = self._answered((ENERGY, INSTANT_POWER, AVERAGE_POWER), of_module=self._module)
        gpu_alone = self._answered((INSTANT_POWER, AVERAGE_POWER)) if self._module else ()

        def series(field: int, domain: Domain, lag_s: float | None = None) -> DeviceSeries:
            source = _SOURCES[field]
            what: Counter | PowerIntegral = PowerIntegral(interval_ns=interval_ns, lag_s=lag_s or LAG_S[source])
            if field == ENERGY:
                # 64 bits of mJ do not wrap in the life of a machine, and no board or module draws 3 kW.
                what = Counter(unit_j=1e-3, wrap=None, max_w=3000.0, lag_s=LAG_S[source])
            label = f"{self.board.device} ({self.board.uuid})"
            return DeviceSeries(SensorChannel(self.board.device, domain, source), label, what)

        if answered:
            yield NvmlCall(nvml, fields=answered, of_module=self._module), [series(field, whole) for field in answered]
        if gpu_alone:
            yield NvmlCall(nvml, fields=gpu_alone), [series(field, "gpu") for field in gpu_alone]
        counts = ENERGY in answered
        if not counts and self._has("nvmlDeviceGetTotalEnergyConsumption"):
            counts = True
            yield NvmlCall(nvml, "nvmlDeviceGetTotalEnergyConsumption", "Q"), [series(ENERGY, whole)]
        # What one GPU of a module draws is no measure of the module.
        if INSTANT_POWER not in answered and not (counts and self._module):
            if not counts:
                nvml.nvmlDeviceGetPowerUsage(self._handle)
            if self._has("nvmlDeviceGetPowerUsage"):
                yield NvmlCall(nvml, "nvmlDeviceGetPowerUsage", "I"), [series(INSTANT_POWER, "gpu", _USAGE_LAG_S)]

    def _answered(self, fields: tuple[int, ...], *, of_module: bool = False) -> tuple[int, ...]:
        """Return which of the fields the board has."""
        try:
            call = NvmlCall(self._nvml, fields=fields, of_module=of_module)
        except AttributeError:
            return ()
        call.bind(self._handle)
        if call.function(*call.arguments):
            return ()
        shown = call.shown(bytes(call.buffer))
        return tuple(field for field, (code, _, _) in zip(fields, shown, strict=True) if not code)

    def _has(self, function: str) -> bool:
        try:
            getattr(self._nvml, function)(self._handle)
        except self._nvml.NVMLError_NotSupported:
            return False
        return True

    def _bind(self) -> None:
        for call, _ in self._calls:
            call.bind(self._handle)

    def _renew(self) -> None:
        """Look for the board by its UUID, once a second while it fails."""
        now_ns = time.monotonic_ns()
        if now_ns - self._renewed_ns < NS:
            return
        self._renewed_ns = now_ns
        with suppress(self._nvml.NVMLError):
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.board.uuid)
            self._failed = False
            self._bind()


def open_nvml(interval_ns: int, library: Path | None = None, boards: str = ALL, *, settles: bool = True) -> Discovery:
    """Open every board that NVML shows, or those of a choice, a sensor each; those without energy are in `missing`.

    `library` is loaded in place of the driver's. Unless there is no time to settle, the counters are polled for 0.3 s,
    and for longer where they are slow. Raises OptionError for a choice that names no board.
    """
    nvml: Any = load(library)
    if isinstance(nvml, Missing):
        return Discovery((), (nvml,))
    sensors: list[NvmlSensor] = []
    missing: list[Missing] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                sensors.append(NvmlSensor(nvml, index, interval_ns))
            except nvml.NVMLError as error:
                remedy = "check that nvidia-smi shows its power as this user"
                missing.append(Missing(NAME, f"gpu-{index}: {error}", remedy, ((f"gpu-{index}", "gpu"),)))
    except nvml.NVMLError as error:
        missing.append(unanswered(error))
    finally:
        # The sensors hold the library from here on.
        nvml.nvmlShutdown()
    if not sensors and not missing:
        missing.append(Missing(NAME, "the driver shows no GPU", "check nvidia-smi -L"))
    known = [sensor.board for sensor in sensors] + [Board(part[0]) for gap in missing for part in gap.parts]
    chosen = choose_boards(boards, known, os.environ)
    counted = frozenset(board.device for board in known) if chosen is None else chosen
    for sensor in sensors:
        if sensor.board.device not in counted:
            sensor.close()
    sensors = [sensor for sensor in sensors if sensor.board.device in counted]
    missing = [gap for gap in missing if not gap.parts or gap.parts[0][0] in counted]
    if settles:
        _learn_updates(sensors)
    unsampled = tuple(board._replace(is_sampled=False) for board in known if board.device not in counted)
    about = "" if chosen is None else name_boards(known, chosen)
    return Discovery(tuple(sensors), tuple(missing), about, unsampled)


def _learn_updates(sensors: Sequence[NvmlSensor]) -> None:
    """Poll the counters of boards together, to learn how often they are updated."""
    counting = [sensor for sensor in sensors if sensor.counter_shown() is not None]
    reads = [sensor.counter_shown for sensor in counting]
    shown = polled(reads, step_s=0.001, usual_s=0.3, longest_s=_PROBE_LONGEST_S)
    for sensor, looks in zip(counting, shown, strict=True):
        sensor.counter_period_ms = period_ms((look.after_ns, look.value) for look in looks)
        for series in sensor.series:
            if series.counter is not None:
                series.counter.lag_s = lag_of(looks) or _PROBE_LONGEST_S


def _slices(nvml: Any, handle: Any) -> list[str] | None:
    """Return the UUIDs of a board's slices; None for a board that is not in MIG mode, or cannot be."""
    found: list[str] | None = None
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            found = []
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(nvml.NVMLError_NotFound):
                    found.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return found
