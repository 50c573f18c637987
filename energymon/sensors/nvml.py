"""GPU energy from NVML, a sensor a board: its own counter, and its power integrated beside it or in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from energymon.clock.monotonic import NS
from energymon.reading import LAG_S, Domain
from energymon.sensors.base import Discovery, Missing, SensorChannel, SensorPoint, samples_power_alone
from energymon.sensors.boards import ALL, Board, choose_boards, name_boards
from energymon.sensors.counter import Counter, DeviceSeries, PowerIntegral
from energymon.sensors.nvml_library import (
    AVERAGE_POWER,
    ENERGY,
    FIELD_FORM,
    INSTANT_POWER,
    MODULE_SCOPE,
    NAME,
    CObject,
    NvmlCall,
    load,
    unanswered,
)
from energymon.sensors.updates import Poll, lag_of, period_ms, polled

if TYPE_CHECKING:
    from energymon.ticker.ticker import Operation, Raw

_PROBE_S: Final = 0.3
_PROBE_LONGEST_S: Final = 1.5
_PROBE_STEP_S: Final = 0.001
_COUNTER: Final = "nvml-counter"
_POWER: Final = "nvml-power"
_AVERAGE: Final = "nvml-power-average"
_JOULES_PER_MJ: Final = 1e-3
_MAX_BOARD_W: Final = 3000.0
"""Above what any board or GPU module draws."""
_USAGE_LAG_S: Final = 1.0
"""nvmlDeviceGetPowerUsage averages over a second on most chips since Ampere (nvml.h)."""
_MODULES: Final = ("GH200", "GB200")
"""Boards whose counter covers the module: GPU, CPU and memory. What the GPU draws of it is power alone."""

_RENEW_NS: Final = NS
"""How often a board that fails is looked for again."""


class NvmlSensor:
    """One board."""

    def __init__(self, nvml: CObject, index: int, interval_ns: int) -> None:
        """Open a board; raises NVMLError for one that gives neither energy nor power."""
        self._nvml = nvml
        self.name = f"{NAME} gpu-{index}"
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, model = _text(nvml.nvmlDeviceGetUUID(self._handle)), _text(nvml.nvmlDeviceGetName(self._handle))
        self._driver = _text(nvml.nvmlSystemGetDriverVersion())
        self.board = Board(f"gpu-{index}", uuid, model, _slices(nvml, self._handle))
        self._board = f"{self.board.device} ({uuid})"
        self._module = any(name in model for name in _MODULES)
        self._calls: list[tuple[NvmlCall, list[DeviceSeries]]] = list(self._plan(interval_ns))
        if samples_power_alone(self.channels):
            for series in self._series():
                series.dither(interval_ns)
        self._counter_period_ms: float | None = None
        self._failed = False
        self._renewed_ns = 0
        # This board's own hold on the library: NVML counts them.
        nvml.nvmlInit()
        self._open = True
        self._bind()

    @property
    def channels(self) -> tuple[SensorChannel, ...]:
        """The board's counter, power and average power, as far as it gives them."""
        return tuple(series.channel for series in self._series())

    def sample(self) -> Raw:
        """Return [t, answer, t, …, t], the answers between monotonic times, ns: bytes, or NVML's return code."""
        if self._failed:
            self._renew()
        now_ns = time.monotonic_ns
        raw: Raw = [now_ns()]
        for function, arguments, buffer in self._bound:
            code = function(*arguments)
            if code:
                self._failed = True
                raw += code, now_ns()
            else:
                raw += bytes(buffer), now_ns()
        return raw

    def operations(self) -> list[Operation] | None:
        """Return the calls; None while the board fails."""
        return None if self._failed else [call.operation for call, _ in self._calls]

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return a point of each channel, at the value's own time where it is plausible."""
        points: list[SensorPoint] = []
        at = 0
        for call, several in self._calls:
            before_ns, answer, after_ns = raw[at], raw[at + 1], raw[at + 2]
            at += 2
            shown = call.shown(answer) if type(answer) is bytes else [(answer, 0, 0)] * len(several)
            for series, (code, value, t_utc_ns) in zip(several, shown, strict=True):
                if code:
                    self._failed = True
                    if series.counter is not None:
                        series.counter.interrupt()
                    points.append(
                        series.failed(str(self._nvml.NVMLError(code)), (before_ns + after_ns) // 2 + offset_ns)
                    )
                else:
                    points.append(series.point(value, t_utc_ns - offset_ns, before_ns, after_ns, offset_ns))
        return points

    def describe(self) -> dict[str, object]:
        """Return model and UUID, what the counter covers and how often it is updated, and the slices in MIG mode."""
        described: dict[str, object] = {
            "sensor": NAME,
            "driver": self._driver,
            "model": self.board.model,
            "uuid": self.board.uuid,
            "module_power": self._module,
            "slices": self.board.slices,
            "counter_period_ms": self._counter_period_ms,
        }
        described["channels"] = [
            {
                **series.describe(),
                "model": self.board.model,
                "uuid": self.board.uuid,
                "module_power": series.channel.domain == "module",
            }
            for series in self._series()
        ]
        return described

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source."""
        for series in self._series():
            series.delay(delays_s)

    def close(self) -> None:
        """Give the library back."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def counter_shown(self) -> int | None:
        """Return the counter's value now, mJ; None when the board has none."""
        for call, several in self._calls:
            for i, series in enumerate(several):
                if series.channel.source == _COUNTER and not call.function(*call.arguments):
                    code, value, _ = call.shown(bytes(call.buffer))[i]
                    return None if code else value
        return None

    def learn_updates(self, shown: Sequence[Poll], polled_s: float) -> None:
        """Take what polling for `polled_s` showed of the counter."""
        self._counter_period_ms = period_ms((look.after_ns, look.value) for look in shown)
        for series in self._series():
            if series.counter is not None:
                series.counter.lag_s = lag_of(shown) or polled_s

    def _series(self) -> Iterator[DeviceSeries]:
        return (series for _, several in self._calls for series in several)

    def _plan(self, interval_ns: int) -> Iterator[tuple[NvmlCall, list[DeviceSeries]]]:
        """Yield the calls that give most of this board: one for all where it knows the fields."""
        nvml, library = self._nvml, self._nvml.nvmlLib
        scope = MODULE_SCOPE if self._module else 0
        answered = self._answered(scope, ENERGY, INSTANT_POWER, AVERAGE_POWER)
        gpu_alone = self._answered(0, INSTANT_POWER, AVERAGE_POWER) if self._module else ()

        def series(field: int, domain: Domain) -> DeviceSeries:
            if field == ENERGY:
                return self._counter()
            source = _POWER if field == INSTANT_POWER else _AVERAGE
            return self._made(domain, source, PowerIntegral(interval_ns=interval_ns))

        for fields, of, domain in ((answered, scope, self._domain), (gpu_alone, 0, "gpu")):
            if fields:
                call = NvmlCall(library["nvmlDeviceGetFieldValues"], FIELD_FORM, fields, of)
                yield call, [series(field, domain) for field in fields]
        counts = ENERGY in answered
        if not counts and self._has("nvmlDeviceGetTotalEnergyConsumption"):
            counts = True
            yield NvmlCall(library["nvmlDeviceGetTotalEnergyConsumption"], "Q"), [self._counter()]
        # What one GPU of a module draws is no measure of the module.
        if INSTANT_POWER not in answered and not (counts and self._module):
            if not counts:
                nvml.nvmlDeviceGetPowerUsage(self._handle)
            if counts and not self._has("nvmlDeviceGetPowerUsage"):
                return
            usage = self._made("gpu", _POWER, PowerIntegral(interval_ns=interval_ns), _USAGE_LAG_S)
            yield NvmlCall(library["nvmlDeviceGetPowerUsage"], "I"), [usage]

    @property
    def _domain(self) -> Domain:
        return "module" if self._module else "gpu"

    def _counter(self) -> DeviceSeries:
        # 64 bits of millijoules do not wrap in the life of a machine.
        counter = Counter(unit_j=_JOULES_PER_MJ, wrap=None, max_w=_MAX_BOARD_W, lag_s=LAG_S[_COUNTER])
        return self._made(self._domain, _COUNTER, counter)

    def _made(
        self, domain: Domain, source: str, what: Counter | PowerIntegral, lag_s: float | None = None
    ) -> DeviceSeries:
        return DeviceSeries(SensorChannel(self.board.device, domain, source), self._board, what, lag_s)

    def _answered(self, scope: int, *fields: int) -> tuple[int, ...]:
        """Return which of the fields the board has."""
        try:
            function = self._nvml.nvmlLib["nvmlDeviceGetFieldValues"]
        except AttributeError:
            return ()
        call = NvmlCall(function, FIELD_FORM, fields, scope)
        call.bind(self._handle)
        if function(*call.arguments):
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
        self._bound = tuple((call.function, call.arguments, call.buffer) for call, _ in self._calls)

    def _renew(self) -> None:
        """Look for the board by its UUID, once a second while it fails."""
        now_ns = time.monotonic_ns()
        if now_ns - self._renewed_ns < _RENEW_NS:
            return
        self._renewed_ns = now_ns
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.board.uuid.encode())
        except self._nvml.NVMLError:
            return
        self._failed = False
        self._bind()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_nvml(interval_ns: int, library: Path | None = None, boards: str = ALL, *, settles: bool = True) -> Discovery:
    """Open every board that NVML shows, or those of a choice, a sensor each; those without energy are in `missing`.

    `library` is loaded in place of the driver's. The counters are polled for 0.3 s, and for longer where they are
    slow, to learn how often they are updated, unless there is no time to settle. Raises OptionError for a choice that
    names no board.
    """
    nvml: CObject = load(library)
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
    if (counted := choose_boards(boards, known, os.environ)) is not None:
        for sensor in sensors:
            if sensor.board.device not in counted:
                sensor.close()
        sensors = [sensor for sensor in sensors if sensor.board.device in counted]
        missing = [gap for gap in missing if not gap.parts or gap.parts[0][0] in counted]
    if settles:
        _probe(sensors)
    return Discovery(tuple(sensors), tuple(missing), "" if counted is None else name_boards(known, counted))


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


def _slices(nvml: CObject, handle: CObject) -> list[str] | None:
    """Return the UUIDs of a board's slices; None for a board that is not in MIG mode."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
    except nvml.NVMLError:
        # Boards that cannot be sliced answer so.
        return None
    found = []
    with suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError_NotFound):
                found.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
    return found
