"""Waits before the first epoch of a session until temperatures are steady, under the load of real steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

from harness.config.specs import SettleSpec
from harness.system.heat import DeviceState

if TYPE_CHECKING:
    from harness.workloads.accelerator import Step

_LOOK_S: Final = 0.5


def settle(
    make: Callable[[], Step], read: Callable[[], Sequence[DeviceState]], spec: SettleSpec, report: Callable[[str], None]
) -> str:
    """Train on made-up batches until the temperatures of all devices are steady.

    Returns how they became steady; empty, at once, where no device says its temperature, where there is no time for it
    and where no real step trains, whose load would warm them.

    Args:
        make: makes a step, which is thrown away: the weights of the cell's own step stay as they are.
        read: returns the state of the devices.
        spec: a temperature is steady when its means over the two halves of the last `over_s` seconds differ by at most
            `degrees`; `max_s` ends the wait.
        report: gets a line about twice a second.
    """
    first = temps = _read_temps(read) if spec.max_s else {}
    if not first or (step := make()).kind not in ("cuda", "cpu"):
        return ""
    now = time.monotonic()
    began, is_steady, seen = now, False, deque([(now, first)])
    while not is_steady and now - began < spec.max_s:
        ends = min(now + _LOOK_S, began + spec.max_s)
        while time.monotonic() < ends:
            step.warm_up()
        now, temps = time.monotonic(), _read_temps(read)
        report(f"until {', '.join(f'{device} {temp_c:.0f} °C' for device, temp_c in temps.items())} are steady")
        seen.append((now, temps))
        while seen[0][0] < now - spec.over_s:
            seen.popleft()
        is_steady = now - began >= spec.over_s and _is_steady(seen, now - spec.over_s / 2, spec.degrees)
    changes = [f"{device} {first[device]:.0f} to {temps[device]:.0f} °C" for device in first if device in temps]
    return f"temperatures {'' if is_steady else 'not '}steady after {now - began:.0f} s: {', '.join(changes)}"


def _read_temps(read: Callable[[], Sequence[DeviceState]]) -> dict[str, float]:
    return {one.device: one.temp_c for one in read() if one.temp_c is not None}


def _is_steady(seen: Sequence[tuple[float, Mapping[str, float]]], middle_s: float, degrees: float) -> bool:
    """Return whether the means before and after an instant are as near, of each device that is in all readings.

    Without such a device nothing is known to be steady.
    """
    names = set.intersection(*(set(temps) for _, temps in seen))
    for name in names:
        early, late = ([t[name] for at_s, t in seen if (at_s < middle_s) is half] for half in (True, False))
        if not early or not late or abs(fmean(late) - fmean(early)) > degrees:
            return False
    return bool(names)
