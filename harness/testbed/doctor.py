"""What this machine can do for a testbed, and how the findings of a machine or of several hosts are shown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from harness.errors import HarnessError, TestbedError


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One row of the doctor's table."""

    host: str
    """A host's name, or two of them for what lies between."""
    what: str
    found: str
    verdict: Literal["ok", "warn", "fail"] = "ok"
    """fail: a run cannot work so; warn: it works, with what `found` says."""
    remedy: str = ""


def show(findings: Sequence[HostFinding]) -> str:
    """Return a table of findings, each remedy below its row."""
    columns = [(f.verdict, f.host, f.what, f.found) for f in findings]
    widths = [max((len(row[i]) for row in columns), default=0) for i in range(3)]
    lines = []
    for finding, row in zip(findings, columns, strict=True):
        lines.append("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
        if finding.remedy:
            lines.append(f"{' ' * (widths[0] + 2)}→ {finding.remedy}")
    count = Counter(finding.verdict for finding in findings)
    return "\n".join([*lines, f"{count['fail']} fail, {count['warn']} warn, {count['ok']} ok"])


def examine_machine() -> Iterator[HostFinding]:
    """Try each ability of this machine in turn, `warn` where it is not there; nothing that is made outlives a trial."""
    from harness.testbed.caches import DROPPED, how_dropped
    from harness.testbed.memory import memory_obstacles
    from harness.testbed.mounts.nfs import nfs_obstacles
    from harness.testbed.mounts.sshfs import sshfs_obstacles
    from harness.testbed.netns import netns_obstacles
    from harness.testbed.unprivileged import namespace_obstacles, user_namespace_obstacles

    yield _found("testbed with a link", netns_obstacles(), "testbed.kind=netns can be opened")
    yield _found("network namespaces", namespace_obstacles(), "storage and compute get one each")
    yield _found("user namespaces", user_namespace_obstacles(), "the testbed runs without root")
    yield _device("link by netem", ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"], "sch_netem")
    yield _device("link by relay", ["ip", "tuntap", "add", "jf0", "mode", "tun"], "tun")
    tbf = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "1mb", "limit", "1mb"]
    yield _device("rate cap by tbf", tbf, "sch_tbf")
    yield _floor()
    yield _found("mount by NFSv4", nfs_obstacles(), "the papers' own kind of mount")
    yield _found("mount by sshfs", sshfs_obstacles(), "used where there is no NFS")
    is_whole = how_dropped() == DROPPED
    dropping = [] if is_whole else ["root of the machine alone may write vm.drop_caches; files are advised away"]
    yield _found("cold caches by vm.drop_caches", dropping, "pages, directories and attributes are forgotten")
    yield _found("memory limit of a cell", memory_obstacles(), "testbed.memory_mb can be set")


def _floor() -> HostFinding:
    """Bring a link up and report its round trip without delay."""
    from harness.testbed.netns import NetnsTestbed

    ability = "round trip of the link itself"
    try:
        with NetnsTestbed(uuid4().hex[:8], "auto") as testbed:
            use = "regimes that are nearer get no delay, and are refused beyond checks.rtt_ms"
            return _found(ability, [], f"{testbed.link.floor_ms:.2g} ms by {testbed.link.kind}: {use}")
    except HarnessError as error:
        return _found(ability, [str(error)], "")


def _device(ability: str, trial: Sequence[str], module: str) -> HostFinding:
    """Try something in a network namespace that ends with the trial."""
    from harness.testbed.link.namespace import run_in
    from harness.testbed.unprivileged import namespace_obstacles

    if obstacles := namespace_obstacles():
        return _found(ability, obstacles, "")
    try:
        run_in(None, ["unshare", "--net", "--", *trial])
    except TestbedError as error:
        reason = str(error).splitlines()[-1]
        return _found(ability, [f"{reason} (modprobe {module} where the kernel has it as a module)"], "")
    return _found(ability, [], "the kernel has it")


def _found(ability: str, obstacles: Sequence[str], use: str) -> HostFinding:
    """Return an ability: what it is good for, or why it is missing and the remedy."""
    return HostFinding(platform.node(), ability, "; ".join(obstacles) or use, "warn" if obstacles else "ok")
