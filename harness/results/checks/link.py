"""Rules on the link: before, within and after the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from harness.results.checks.judged import NOT_APPLICABLE, PASS, READS_ONCE, UNKNOWN, WARN, Check, JudgedEpoch
from harness.results.metrics import LinkPings, find_fastest_second, summarize_pings
from harness.testbed.link.measure.bounds import CHANCE, list_link_bounds
from harness.testbed.link.userspace.paths import PathCounters


def check_link(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge the link of an epoch that uses one."""
    if not epoch.data.cell.regime.is_local:
        seen = summarize_pings(epoch.data, epoch.start, epoch.end)
        yield from _check_probes(epoch)
        yield from _check_pings(epoch, seen)
        yield _check_link_in_epoch(epoch, seen)


def _check_probes(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge the link by its probes before and after the cell, and by what it carried in the epoch."""
    link, regime = epoch.data.link, epoch.data.cell.regime
    for when, probe in (("before", link.before), ("after", link.after)):
        for bound in list_link_bounds(regime, probe, epoch.limits):
            rule = f"{bound.rule}_{when}"
            if bound.found is None:
                yield epoch.check(rule, bound.expected, "not measured", UNKNOWN)
            else:
                pair = f" between {probe.pair}" if probe and probe.pair and bound.rule == "rtt" else ""
                earlier = f", in probe {len(probe.earlier) + 1}" if probe and probe.earlier else ""
                yield epoch.check(rule, bound.expected, f"{bound.found:.3g} {bound.unit}{pair}{earlier}", bound.kept)
    carried = link.get_epoch(epoch.row.epoch)
    if regime.loss_pct == 0:
        expected = "0 packets dropped in the link's queue"
        yield epoch.check_count("no_drops", expected, carried.drops, "dropped", (0, 0))
    if regime.paths:
        yield _check_paths(epoch, len(regime.paths), carried.paths)


def _check_paths(epoch: JudgedEpoch, asked: int, found: Sequence[PathCounters]) -> Check:
    """Show what each path carried; a loader with fewer connections than the regime has paths leaves some out."""
    expected = f"each of {asked} paths carries part of the epoch"
    if len(found) != asked:
        return epoch.check("paths", expected, "not measured", UNKNOWN)
    actual = "; ".join(
        f"{path.bytes / 1e6:.3g} MB over {path.connections} connection{'' if path.connections == 1 else 's'}"
        + (f" ({path.lost} packets lost, {path.drops} dropped)" if path.lost or path.drops else "")
        for path in found
    )
    return epoch.check("paths", expected, actual, PASS if all(path.connections for path in found) else WARN)


def _check_pings(epoch: JudgedEpoch, seen: LinkPings | None) -> Iterable[Check]:
    """Judge how a link carried pings within the epoch."""
    limits, regime = epoch.limits, epoch.data.cell.regime
    paused = f"no packet held for more than {limits.link_pause_ms:g} ms"
    held = f"≤ {limits.link_held_pct:g} % of the pings held for more than {limits.link_held_ms:g} ms"
    if seen is None:
        yield epoch.check("link_held", held, "not watched", UNKNOWN)
        return
    if not seen.sent and seen.due <= 1:
        for rule, expected in (("link_pause", paused), ("link_held", held)):
            yield epoch.check(rule, expected, "no ping in the epoch", NOT_APPLICABLE)
        return
    if seen.sent < seen.due // 2:
        yield epoch.check("link_held", held, f"{seen.sent} pings of {seen.due}", UNKNOWN)
        return
    line = "" if seen.pause_ms is None else f", the delay line's own longest pause {seen.pause_ms:.0f} ms"
    longest = max(seen.held_ms, default=0.0)
    fine = seen.longest_ms <= limits.link_pause_ms
    yield epoch.check("link_pause", paused, f"a ping {longest:.0f} ms{line}", fine)
    slow = sum(one > limits.link_held_ms for one in seen.held_ms)
    # In a short epoch a single slow ping is over the share, and shows nothing.
    fine = slow <= 1 or 100 * slow <= limits.link_held_pct * seen.sent
    yield epoch.check("link_held", held, f"{slow} of {seen.sent}", fine)
    most = math.floor(seen.predict_lost(regime, CHANCE)) + 1
    yield epoch.check("pings_lost", f"≤ {most} of {seen.sent} pings lost", f"{seen.lost} lost", seen.lost <= most)


def _check_link_in_epoch(epoch: JudgedEpoch, seen: LinkPings | None) -> Check:
    """Judge whether the link was as far as its regime while the epoch used it, and no faster."""
    limits, regime = epoch.limits, epoch.data.cell.regime
    allowed_ms = max(limits.link_epoch_ms, regime.rtt_ms * limits.link_epoch_pct / 100)
    # What the delay line itself was late by, which is the host's doing, is in no bound but that of `link_pause`.
    late_ms = allowed_ms + 2 * (seen.pause_ms or 0.0 if seen else 0.0)
    expected = (
        f"half of the pings within {allowed_ms:.2g} ms of the round trip, and 95 % at most {late_ms:.2g} ms later"
    )
    if epoch.data.cell.reads == "once":
        return epoch.check("link_in_epoch", expected, READS_ONCE, NOT_APPLICABLE)
    if seen is None or not seen.held_ms:
        return epoch.check("link_in_epoch", expected, "no ping in the epoch", NOT_APPLICABLE if seen else UNKNOWN)
    median_ms, p95_ms = (float(value) for value in np.percentile(seen.held_ms, (50, 95)))
    # In a short epoch a single late ping is half of them or 5 %, and shows nothing.
    far, slow = (sum(one > limit_ms for one in seen.held_ms) for limit_ms in (allowed_ms, late_ms))
    actual = f"median {median_ms:.2g} ms and 95 % {p95_ms:.2g} ms later, at most {seen.nearer_ms:.2g} ms nearer"
    fine = seen.nearer_ms <= allowed_ms and (far <= 1 or median_ms <= allowed_ms) and (slow <= 1 or p95_ms <= late_ms)
    fastest = find_fastest_second(epoch.data, epoch.start, epoch.end)
    if fastest is not None and regime.rate_gbit is not None:
        cell = epoch.data.cell
        # The rate is that of each host that sends: a storage host, or another one whose ranks send gradients.
        senders = max(1, cell.placement.storages) + max(0, len({one.address for one in cell.ranks}) - 1)
        most = senders * regime.rate_gbit * (1 + limits.rate_pct / 100)
        expected += f", ≤ {most:.3g} Gbit/s in a second"
        actual += f", up to {fastest:.2g} Gbit/s"
        fine = fine and fastest <= most
    return epoch.check("link_in_epoch", expected, actual, fine)
