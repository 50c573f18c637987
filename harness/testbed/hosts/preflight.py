"""What the hosts of an inventory have and lack for a testbed, and their being taken by one controller at a time.

`playbooks/preflight.yml` looks at each host. Its clock, and the network between each two hosts, are measured from here.
Nothing is installed or changed on any of them.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.doctor import HostFinding
from harness.testbed.hosts.connection import RemoteNode, beating, reach
from harness.testbed.hosts.playbook import Assertion, PlaybookProgress, PlaybookResult, run_playbook
from harness.testbed.hosts.session import OLDEST_PYTHON, HostSession, compare_clocks, in_parallel, sessions_with
from harness.testbed.hosts.supervisor import HOST_STATE
from harness.testbed.link.measure.probe import probe_nodes
from joulefeed.calls import CallError
from joulefeed.child import ChildError

if TYPE_CHECKING:
    from harness.testbed.hosts.inventory import Host, Inventory

_PLAYBOOK: Final = "preflight.yml"
_OWN_ADDRESS: Final = "Data address"
_PAIR_S: Final = 120.0
_CLOCKS: Final = 11
_OFFSET_NS: Final = 1_000_000
"""What chrony must reach: the checks of a run refuse more."""
_MAX_OFFSET_NS: Final = 1_000_000_000
_NEAR_MS: Final = 1.0
_MIN_GBIT: Final = 1.0
_RATE_TRIALS: Final = 3
_BEAT_S: Final = 10.0
"""A claim ends a minute after the last beat, where the end of its connection is not seen."""


def examine_hosts(inventory: Inventory, progress: PlaybookProgress) -> list[HostFinding]:
    """Look at all hosts at once, then at the data network between each pair of them, one pair after the other.

    Raises TestbedError when the playbook cannot run on a host that answered before.
    """
    carriers = [host for host in inventory.all if {"storage", "compute"} & set(host.roles)]
    with sessions_with(inventory) as started:
        reached = [session for session, why in started.items() if why is None]
        findings = {
            session.host.name: [] if why is None else [unreachable(session.host, why)]
            for session, why in started.items()
        }
        if not reached:
            return [row for rows in findings.values() for row in rows]
        limit = ",".join(session.host.name for session in reached)
        result = run_playbook(_PLAYBOOK, inventory, progress, limit=limit)
        clocks = in_parallel(_offset, reached)
        for session, clock in zip(reached, clocks, strict=True):
            host = session.host
            how = "this machine" if host.connection == "local" else f"{host.address} port {host.port}, host key checked"
            findings[host.name].append(HostFinding(host.name, "reachable", how))
            findings[host.name] += [_finding(one) for one in result.assertions if one.host == host.name]
            findings[host.name].append(_clock(host, clock, _looked(result, host.name).get("chrony", "")))
        own = {one.host for one in result.assertions if one.task == _OWN_ADDRESS and one.holds}
        # Where the package runs.
        able = {name for name in result.answers if "runs" in _looked(result, name)}
        linked = [session for session in reached if session.host.name in own and session.host in carriers]
        pairs = [_between(one, other, able) for one, other in combinations(linked, 2)]
    return [*(row for rows in findings.values() for row in rows), *pairs]


def find_obstacles(inventory: Inventory, progress: PlaybookProgress) -> list[HostFinding]:
    """Return what is wrong with sudo, room, interpreter, data interface and its address, by host in their order."""
    variables = {"preflight_begins": True}
    result = run_playbook(_PLAYBOOK, inventory, progress, variables=variables, tags="begin")
    order = [host.name for host in inventory.all]
    found = sorted(map(_finding, result.assertions), key=lambda finding: order.index(finding.host))
    return [finding for finding in found if finding.verdict == "fail"]


def unreachable(host: Host, words: str) -> HostFinding:
    """Return the finding of a host that does not answer, from the words of ssh or of its Python."""
    destination = host.address if host.user is None else f"{host.user}@{host.address}"
    where = shlex.join([*(["-p", str(host.port)] if host.port != 22 else []), destination])
    remedies = {
        "Host key verification failed": f"compare its fingerprint and accept it once: ssh {where}; where the key has "
        "changed and you know why, ssh-keygen -R first",
        "IDENTIFICATION HAS CHANGED": "find out why; then ssh-keygen -R the old key",
        "Permission denied": f"ssh {where} must work without a password: ssh-copy-id, or ansible_user and "
        "ansible_ssh_private_key_file",
        "not resolve": "correct ansible_host",
        "python3": "apt-get install python3 there",
        "too old": f"Ansible needs Python {'.'.join(map(str, OLDEST_PYTHON))} or later there, as python3",
    }
    default = f"check that the host runs and its SSH server listens there: ssh {where}"
    remedy = next((remedy for telling, remedy in remedies.items() if telling in words), default)
    return HostFinding(host.name, "python3" if "ython" in words else "reachable", words, "fail", remedy)


@contextmanager
def hosts_claimed(
    inventory: Inventory, purpose: str, progress: PlaybookProgress, *, must_reach: bool = True
) -> Iterator[None]:
    """Take all hosts, and look at what must be right before anything is changed; nothing is changed by that.

    Another controller that is refused says the `purpose`. With `must_reach` all must be reachable and right; otherwise
    those are taken that can be.

    Raises TestbedError when a host is taken by another controller, or is not reachable or right; the message names it.
    """
    with sessions_with(inventory) as sessions:
        wrong = [unreachable(session.host, why) for session, why in sessions.items() if why is not None]
        reached = [session for session, why in sessions.items() if why is None]
        if not (wrong and must_reach):
            _claim(reached, purpose)
            wrong = find_obstacles(inventory, progress) if must_reach else []
        if wrong and must_reach:
            first, *others = wrong
            more = f" (and {len(others)} more)" if others else ""
            raise TestbedError(f"host {first.host}: {first.what}: {first.found}: {first.remedy}{more}")
        with beating(lambda: _beat(reached), _BEAT_S):
            yield


def _claim(sessions: Sequence[HostSession], purpose: str) -> None:
    now = datetime.now(UTC)
    user = os.environ.get("USER", f"user {os.getuid()}")
    who = f"{user} on {platform.node()} (process {os.getpid()}, {purpose}, since {now:%H:%M} UTC)"
    # One after the other in the inventory's order, so that one of two controllers gets them all.
    for session in sessions:
        host = session.host.name
        try:
            answer = session.ask("claim", who=who)
        except (CallError, ChildError) as error:
            raise TestbedError(f"host {host}: {session.words() or error}") from error
        if answer == who:
            raise TestbedError(f"host {host} of the inventory is a machine that has another name there: name it once")
        if answer:
            # Any user of that host can write this.
            words = "".join(letter for letter in str(answer) if letter.isprintable())
            raise TestbedError(f"host {host} is in use by {words}: wait for its end")
        session.is_claim = True


def _beat(sessions: Sequence[HostSession]) -> None:
    for session in sessions:
        # What needs a host says that it is lost.
        with suppress(CallError, ChildError, OSError):
            if session.is_connected:
                session.ask("clock", _BEAT_S)


def _looked(result: PlaybookResult, host: str) -> dict[str, str]:
    """Return what a host's commands printed as lines of KEY=VALUE."""
    lines = "\n".join(result.answers.get(host, {}).values()).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _finding(assertion: Assertion) -> HostFinding:
    task, (found, remedy, verdict) = assertion.task, (*assertion.words, "", "")[:3]
    what = task if task.isupper() else task[0].lower() + task[1:]
    if assertion.holds:
        return HostFinding(assertion.host, what, found)
    remedy = remedy or "run the doctor again"
    return HostFinding(assertion.host, what, found, "warn" if verdict == "warn" else "fail", remedy)


def _offset(session: HostSession) -> tuple[float, float] | str:
    """Return the bound and the offset of a host's clock, ns, or why they are not known."""
    try:
        return compare_clocks(partial(session.ask, "clock"), _CLOCKS)
    except (CallError, ChildError) as error:
        return str(error)


def _clock(host: Host, offset: tuple[float, float] | str, tracking: str) -> HostFinding:
    if isinstance(offset, str):
        return HostFinding(host.name, "clock", offset, "fail", "run the doctor again")
    bound_ns, offset_ns = offset
    beyond_ns = max(0, abs(offset_ns) - bound_ns)
    words = f"{offset_ns / 1e6:+.2f} ms from this machine, ± {bound_ns / 1e6:.2f} ms"
    fields = tracking.split(",")  # as `chronyc -c tracking` prints them
    synchronised = len(fields) >= 14 and fields[13] != "Not synchronised"
    if synchronised:
        words += f"; chrony: {float(fields[4]) * 1e3:+.3f} ms from {fields[1] or fields[0]}"
    if beyond_ns > _MAX_OFFSET_NS:
        return HostFinding(host.name, "clock", words, "fail", "set it: chronyc makestep, or date -u -s")
    words += "" if synchronised else "; chrony does not run"
    if beyond_ns <= _OFFSET_NS and (synchronised or host.connection == "local"):
        return HostFinding(host.name, "clock", words)
    remedy = "site.yml sets chrony up; give it a server that the host can reach, then chronyc makestep"
    return HostFinding(host.name, "clock", words, "warn", remedy)


def _between(one: HostSession, other: HostSession, able: Collection[str]) -> HostFinding:
    """Measure the data network between two hosts: round trip, and rate each way where both have the package."""
    name = f"{one.host.name} – {other.host.name}"
    addresses = [str(session.host.data_address) for session in (one, other)]
    try:
        port = one.ask("listen", address=addresses[0])
        rtt_ms = float(other.ask("reach", _PAIR_S, address=addresses[1], host=addresses[0], port=port))
        words, least_gbit = f"{rtt_ms:.3f} ms; its rate is measured once `up` has run", None
        if {one.host.name, other.host.name} <= set(able):
            rates = [_rate_gbit(*hosts, rtt_ms) for hosts in ((one.host, other.host), (other.host, one.host))]
            words, least_gbit = f"{rtt_ms:.3f} ms, {rates[0]:.2f} and {rates[1]:.2f} Gbit/s by TCP", min(rates)
    except (CallError, ChildError, TestbedError) as error:
        words = f"{addresses[1]} does not reach {addresses[0]}: {error}"
        remedy = "let the data network's hosts reach each other on all TCP ports: check routes, cables and nftables"
        return HostFinding(name, "data network", words, "fail", remedy)
    if rtt_ms > _NEAR_MS:
        remedy = f"regimes nearer than {rtt_ms:.1f} ms cannot be set"
    elif least_gbit is not None and least_gbit < _MIN_GBIT:
        remedy = f"regimes faster than {least_gbit:.2f} Gbit/s cannot be set"
    else:
        return HostFinding(name, "data network", words)
    return HostFinding(name, "data network", words, "warn", remedy)


def _rate_gbit(source: Host, target: Host, rtt_ms: float) -> float:
    """Measure the rate from one host to another as a run's probe does; raises TestbedError where that fails."""
    run_id = uuid4().hex[:8]

    def node(role: Literal["storage", "compute"], host: Host) -> RemoteNode:
        address = str(host.data_address)
        return RemoteNode(role, run_id, address, host=host.name, connection=reach(host), there=HOST_STATE)

    regime = Regime(name="idle", rtt_ms=rtt_ms, rate_gbit=10.0)
    # Of a flow that starts late on a busy host too little comes.
    for _ in range(_RATE_TRIALS):
        found = probe_nodes(node("compute", target), node("storage", source), regime)
        if found.rate_gbit is not None:
            return found.rate_gbit
    raise TestbedError("too little came to measure the rate")
