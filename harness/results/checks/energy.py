"""Rules on the energy agents and on the clocks of the nodes."""

from __future__ import annotations

from collections.abc import Iterable

from energymon import missed_ticks
from harness.results.cells import HostRecord
from harness.results.checks.judged import FAIL, NO_SENSOR, NOT_APPLICABLE, ONE_CLOCK, UNKNOWN, Check, JudgedEpoch
from harness.results.make_rows import to_readings_ns


def check_energy(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge what the energy agents sampled, and by which clocks."""
    yield _check_ticks(epoch)
    for host in epoch.data.cell.hosts:
        yield _check_ticks(epoch, host)
        yield _check_host_clock(epoch, host)
    yield from _check_sources(epoch)
    yield _check_clock(epoch)


def _check_ticks(epoch: JudgedEpoch, host: HostRecord | None = None) -> Check:
    """Judge how many ticks the energy agent of a host missed; by default of the host that drives the run."""
    energy = host or epoch.data.cell.energy
    expected = f"< {epoch.limits.missed_ticks_pct:g} % of the ticks" + (f" of host {host.host}" if host else "")
    # A meter at the wall is asked once a second, whatever the ticks.
    series = frozenset((one.device, one.domain, one.source) for one in energy.series if one.domain != "wall")
    span_ns = to_readings_ns(epoch.start, energy), to_readings_ns(epoch.end, energy)
    missed, due = missed_ticks(epoch.data.readings_of(host), series, *span_ns, round(energy.interval_ms * 1e6))
    share = 100 * missed / max(1, due)
    actual = f"{missed} of {due} ticks ({share:.1f} %)"
    # One tick missed in a short epoch is over the share, yet the counters are cumulative: allow a single one.
    verdict: str | bool = share < epoch.limits.missed_ticks_pct or missed <= 1
    if not series or not due:
        actual, verdict = "no tick in the epoch" if series else NO_SENSOR, NOT_APPLICABLE
    return epoch.check("missed_ticks", expected, actual, verdict, None if host is None else host.host)


def _check_host_clock(epoch: JudgedEpoch, host: HostRecord) -> Check:
    """Judge a host's clock by the lead's. Rows account for the offset, and error bounds for the offset's error."""
    limit_ms = epoch.limits.clock_offset_ms
    expected = f"< {limit_ms:g} ms between the clocks of host {host.host} and the lead"
    measured = (("before", host.clock_before), ("after", host.clock_after))
    actual = ", ".join(
        f"{when} {clock.offset_ms:+.3f} ± {clock.error_ms:.3f} ms ({clock.source})" for when, clock in measured
    )
    set_since = [event.message for event in host.events if event.kind == "clock-step"]
    if not set_since and all(clock.source == ONE_CLOCK for _, clock in measured):
        return epoch.check("clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE, host.host)
    fine = not set_since and all(abs(clock.offset_ms) < limit_ms for _, clock in measured)
    return epoch.check("clock_offset", expected, "; ".join([*set_since, actual]), fine, host.host)


def _check_clock(epoch: JudgedEpoch) -> Check:
    """Judge the offset between the nodes' clocks; where both nodes are one machine there is one clock."""
    offset_ms, limit_ms = epoch.data.cell.clock_offset_ms, epoch.limits.clock_offset_ms
    expected = f"< {limit_ms:g} ms between the nodes' clocks"
    for event in epoch.list_energy_events():
        if event.kind == "clock-step":
            return epoch.check("clock_offset", expected, event.message, FAIL)
    if epoch.data.cell.clock == ONE_CLOCK:
        return epoch.check("clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE)
    if offset_ms is None:
        return epoch.check("clock_offset", expected, "not measured", UNKNOWN)
    return epoch.check("clock_offset", expected, f"{offset_ms:g} ms", abs(offset_ms) < limit_ms)


def _check_sources(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge whether sources agree. Warn of lost sensors and of an agent that died, which leave times as they are."""
    energy, events = epoch.data.cell.energy, epoch.list_energy_events()
    unread = [f"not readable: {one.device} {one.domain} ({one.reason})" for one in energy.unreadable]
    unread += [f"lost: {event.message}" for event in events if event.kind == "sensor-lost"]
    unread += _list_resonances(epoch)
    died = [event.message for event in events if event.kind in ("agent-died", "agent-back")]
    alike = "sources of the same joules, and parts and their whole, differ by no more than their bounds and 10 %"
    unlike = epoch.row.disagreements
    if energy.series or epoch.data.cell.hosts:
        yield epoch.check("meters", alike, unlike or "none contradicts another", not unlike)
    else:
        yield epoch.check("meters", alike, NO_SENSOR, NOT_APPLICABLE)
    every = "every part of the host that was found is read, or else its domain and the total are unknown; "
    every += "no sensor that samples a part of the time resonates with the steps"
    for rule, expected, found, otherwise in (
        ("sensors", every, unread, "none unreadable"),
        ("energy_agent", "the energy agent samples throughout", died, "it did"),
    ):
        if not found and not energy.series:
            yield epoch.check(rule, expected, NO_SENSOR, NOT_APPLICABLE)
        else:
            yield epoch.warn(rule, expected, "; ".join(found), otherwise)


def _list_resonances(epoch: JudgedEpoch) -> list[str]:
    """List the series that are summed and whose sensor may see all steps of the epoch at one phase."""
    row, ranks = epoch.row, epoch.data.batches[epoch.row.epoch].of_ranks()
    period_s = row.duration_s / max(1, len(ranks[0].step_s))
    return [
        f"{one.device} {one.source} {how}"
        for one in epoch.data.cell.energy.series
        if one.accuracy is not None and f"{one.domain}={one.source}" in row.energy_source.split(";")
        if (how := one.accuracy.resonance(period_s, row.duration_s))
    ]
