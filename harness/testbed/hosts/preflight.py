"""What the hosts of an inventory have and lack for a testbed: a table with a verdict and a remedy a row.

Nothing is installed or changed on any host: `host_facts.py` goes there over SSH, runs under the host's own Python 3 and
ends with the connection. Every wait has a limit.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Literal

from harness.testbed.hosts.session import OLDEST_PYTHON, START_S, Session, in_parallel
from harness.testbed.hosts.supervisor import HOST_STATE
from joulefeed.child import ChildError

if TYPE_CHECKING:
    from harness.testbed.hosts.inventory import Host, Inventory


Facts = Mapping[str, Any]
"""What `host_facts` found on a host."""
Verdict = Literal["ok", "warn", "fail"]

_FACTS_S: Final = 120.0
_PAIR_S: Final = 30.0
_CLOCKS: Final = 11
_INSTALLED_BYTES: Final = 8_000_000_000
_RUN_BYTES: Final = 1_000_000_000
_TO_BEGIN: Final = dict.fromkeys(("/tmp", "/var/tmp", "/opt", str(HOST_STATE)), 100_000_000)  # noqa: S108 - only asked for
"""Bytes that must be free in a folder before anything is changed."""
_MIN_FILES: Final = 1000
_MODULES: Final = {"compute": ("nfsv4",), "storage": ("nfsd",)}
_PORTS: Final = {"storage": {2049: "NFS"}, "tsdb": {8086: "InfluxDB"}}
_OFFSET_NS: Final = 1_000_000
"""What chrony must reach: the checks of a run refuse more."""
_MAX_OFFSET_NS: Final = 1_000_000_000
_NEAR_MS: Final = 1.0
_MIN_GBIT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    host: str
    """A host's name in the inventory, or two of them for what lies between."""
    what: str
    found: str
    verdict: Verdict
    """fail: a run cannot work so; warn: it works, with what `found` says."""
    remedy: str = ""


def show(findings: Sequence[Finding]) -> str:
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


def to_json(findings: Sequence[Finding]) -> str:
    """Return findings as JSON, with the worst verdict."""
    worst = max((f.verdict for f in findings), key=("ok", "warn", "fail").index, default="ok")
    return json.dumps({"verdict": worst, "findings": [asdict(finding) for finding in findings]}, indent=2)


def examine_hosts(inventory: Inventory) -> list[Finding]:
    """Look at all hosts at once, then at the data network between each pair of them, one pair after the other."""
    carriers = [host for host in inventory.all if {"storage", "compute"} & set(host.roles)]
    sessions = {host.name: Session(host, is_alone=carriers == [host]) for host in inventory.all}
    try:
        found = in_parallel(_examine, list(sessions.values()))
        findings = [finding for of_host in found for finding in of_host]
        reachable = [session for host in carriers if (session := sessions[host.name]).serves]
        return [*findings, *(_between(one, other) for one, other in combinations(reachable, 2))]
    finally:
        for session in sessions.values():
            session.close()


def _examine(session: Session) -> list[Finding]:
    host = session.host
    try:
        session.start()
    except (ChildError, OSError) as error:
        return [_unreachable(host, session.words() or str(error))]
    asked = {
        "do": "facts",
        **_basics(host, needed := _needed_bytes(host)),
        "modules": ["sch_netem", *(name for role in host.roles for name in _MODULES.get(role, ()))],
        "ports": [port for role in host.roles for port in _PORTS.get(role, {})],
        "socket": host.link_socket,
    }
    try:
        facts = session.ask(asked, _FACTS_S)
        clock = _clock(session, facts)
    except ChildError as error:
        return [_unreachable(host, session.words() or str(error))]
    if "error" in facts:
        return [Finding(host.name, "facts", str(facts["error"]), "fail", "run the doctor again")]
    session.serves = host.data_address is not None and bool(facts["address_is_local"])
    how = "this machine" if host.connection == "local" else f"{host.address} port {host.port}, host key checked"
    return [
        Finding(host.name, "reachable", how, "ok"),
        *_system(host, facts),
        _sudo(host, facts),
        *_python(host, facts),
        *_modules(session, facts),
        *_disk(host, facts, needed),
        *_ports(host, facts),
        *_network(host, facts),
        clock,
        *_sensors(host, facts),
    ]


def find_obstacles(session: Session) -> list[Finding]:
    """Connect, and return what is wrong with the connection, sudo, room, and the data interface and its address."""
    host = session.host
    try:
        session.start()
        facts = session.ask({"do": "basics", **_basics(host, _TO_BEGIN)}, _FACTS_S)
    except (ChildError, OSError) as error:
        return [_unreachable(host, session.words() or str(error))]
    if "error" in facts:
        return [_unreachable(host, str(facts["error"]))]
    findings = (_sudo(host, facts), *_python(host, facts), *_disk(host, facts, _TO_BEGIN), *_network(host, facts))
    return [finding for finding in findings if finding.verdict == "fail"]


def _basics(host: Host, needed: Mapping[str, int]) -> Facts:
    python = None if host.installs else host.python
    return {"address": host.data_address, "folders": list(needed), "python": python}


def _unreachable(host: Host, words: str) -> Finding:
    where = shlex.join([*(["-p", str(host.port)] if host.port != 22 else []), _destination(host)])
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
    return Finding(host.name, "python3" if "ython" in words else "reachable", words, "fail", remedy)


def _destination(host: Host) -> str:
    return host.address if host.user is None else f"{host.user}@{host.address}"


def _system(host: Host, facts: Facts) -> Iterator[Finding]:
    release = f"{facts['os']}, kernel {facts['kernel']}"
    yield _row(host, "system", release, facts["apt"], "playbooks install packages by apt: use Debian or Ubuntu", "warn")
    yield Finding(host.name, "python3", "Python " + ".".join(map(str, facts["python"])), "ok")


def _sudo(host: Host, facts: Facts) -> Finding:
    user = host.user or "the user"
    remedy = f"let {user} run sudo without a password: {user} ALL=(ALL) NOPASSWD:ALL in /etc/sudoers.d"
    sudo = "root" if facts["sudo"] == "root" else "sudo without a password" if facts["root"] else facts["sudo"]
    return _row(host, "sudo", sudo.splitlines()[-1] if sudo else "sudo fails", facts["root"], remedy)


def _python(host: Host, facts: Facts) -> Iterator[Finding]:
    """Judge the interpreter that the inventory names, in place of one that is installed."""
    if facts["python_of_runs"] is not None:
        status, words = facts["python_of_runs"]
        found = words.splitlines()[-1] if words else f"exit status {status}"
        remedy = "name one that has this package, or leave joulefeed_python out: an environment is installed then"
        yield _row(host, "joulefeed_python", f"{host.python}: {found}", status == 0, remedy)


def _modules(session: Session, facts: Facts) -> Iterator[Finding]:
    host, is_alone = session.host, session.is_alone
    found: Mapping[str, str] = facts["modules"]
    if {"storage", "compute"} & set(host.roles):
        if host.link_socket is not None:
            remedy = f"start the delay line, or correct joulefeed_link_socket={host.link_socket}"
            yield _row(host, "link", "delay line, by its control socket", facts["socket"], remedy)
        else:
            otherwise = (
                "a delay line in user space is used" if is_alone else "name a delay line in joulefeed_link_socket"
            )
            remedy = f"install the kernel's modules (Ubuntu: linux-modules-extra-{facts['kernel']}), or {otherwise}"
            netem = found["sch_netem"] or "not in this kernel"
            yield _row(host, "netem", netem, bool(found["sch_netem"]), remedy, "warn" if is_alone else "fail")
            tc = "installed" if facts["tc"] else "not installed"
            yield _row(host, "tc", tc, facts["tc"], "apt-get install iproute2")
    for name in ("nfsd", "nfsv4"):
        if name in found:
            remedy = "files go through sshfs, which is slower than the papers' NFS"
            yield _row(host, name, found[name] or "not in this kernel", bool(found[name]), remedy, "warn")


def _needed_bytes(host: Host) -> Mapping[str, int]:
    """Return the space that a run needs, by folder."""
    program = {"/opt": _INSTALLED_BYTES} if host.installs else {"/tmp": _RUN_BYTES}  # noqa: S108 - its free space
    return {**program, "/var/tmp": _RUN_BYTES, str(HOST_STATE): _RUN_BYTES}  # noqa: S108


def _disk(host: Host, facts: Facts, needed: Mapping[str, int]) -> Iterator[Finding]:
    for folder, bytes_needed in needed.items():
        room: Facts = facts["room"][folder]
        free, files = room["bytes"], room["files"]
        if not room["writable"]:
            yield Finding(host.name, "disk", f"{folder} is read-only", "fail", "mount it for writing")
        elif files is not None and files < _MIN_FILES:
            few = f"{files} more files have room in {folder} (inodes)"
            yield Finding(host.name, "disk", few, "fail", f"remove files there, until {_MIN_FILES} have")
        else:
            found = f"{_size(free)} free in {folder}"
            yield _row(host, "disk", found, free >= bytes_needed, f"free {_size(bytes_needed)} there")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def _ports(host: Host, facts: Facts) -> Iterator[Finding]:
    for role in host.roles:
        for port, service in _PORTS.get(role, {}).items():
            use = facts["ports"][str(port)]
            served = use == "InfluxDB" or (service == "NFS" and facts["modules"]["nfsd"] == "loaded")
            found = f"{port} serves {service}" if use != "free" and served else f"{port} is {use}"
            remedy = f"{service} needs TCP port {port}: stop what listens there (ss -ltnp)"
            yield _row(host, "port", found, use == "free" or served, remedy)


def _network(host: Host, facts: Facts) -> Iterator[Finding]:
    name, address = host.data_interface, host.data_address
    there: Mapping[str, Facts] = facts["interfaces"]
    if name is not None:
        others = ", ".join(sorted(one for one in there if one != "lo"))
        if name not in there:
            yield Finding(
                host.name,
                "data interface",
                f"there is no {name}",
                "fail",
                f"correct joulefeed_data_interface; it has {others}",
            )
        else:
            one = there[name]
            down = one["state"] == "DOWN"
            found = f"{name}, {'down' if down else 'up'}, MTU {one['mtu']}"
            yield _row(host, "data interface", found, not down, f"ip link set {name} up, and give it {address}")
    if address is None:
        return
    carrier = next((n for n, one in there.items() if address in (one["addresses"] or ())), None)
    if not facts["address_is_local"]:
        of_interface = ", ".join((there.get(name or "") or {}).get("addresses") or ()) or "no address"
        remedy = f"correct joulefeed_data_address: {name} has {of_interface}"
        yield Finding(host.name, "data address", f"{address} is not an address of this host", "fail", remedy)
    elif name in there and carrier not in (name, None):
        remedy = f"correct joulefeed_data_interface to {carrier}: netem would delay {name}"
        yield Finding(host.name, "data address", f"{address} is on {carrier}, not on {name}", "fail", remedy)
    else:
        yield Finding(host.name, "data address", f"{address} on {carrier or name}", "ok")
    login = next((n for n, one in there.items() if facts["login_address"] in (one["addresses"] or ())), None)
    if login is not None and login == name and host.link_socket is None:
        remedy = "the experiment's delay slows SSH too: reach the host by another interface where there is one"
        yield Finding(host.name, "management", f"SSH comes in on the data interface {name}", "warn", remedy)


def _clock(session: Session, facts: Facts) -> Finding:
    """Compare the host's clock with this machine's by bracketed exchange; the shortest one has the least error."""
    host, found = session.host, []
    for _ in range(_CLOCKS):
        begin_ns = time.time_ns()
        answer = session.ask({"do": "clock"}, START_S)
        end_ns = time.time_ns()
        found.append((end_ns - begin_ns, int(answer["utc_ns"]) - (begin_ns + end_ns) // 2))
    span_ns, offset_ns = min(found)
    beyond_ns = max(0, abs(offset_ns) - span_ns // 2)
    words = f"{offset_ns / 1e6:+.2f} ms from this machine, ± {span_ns / 2e6:.2f} ms"
    fields = str(facts.get("chrony", "")).split(",")
    synchronised = len(fields) >= 14 and fields[13] != "Not synchronised"
    if synchronised:
        words += f"; chrony: {float(fields[4]) * 1e3:+.3f} ms from {fields[1] or fields[0]}"
    if beyond_ns > _MAX_OFFSET_NS:
        return Finding(host.name, "clock", words, "fail", "set it: chronyc makestep, or date -u -s")
    remedy = "site.yml sets chrony up; give it a server that the host can reach, then chronyc makestep"
    good = beyond_ns <= _OFFSET_NS and (synchronised or host.connection == "local")
    words += "" if synchronised else "; chrony does not run"
    return _row(host, "clock", words, good, remedy, "warn")


def _sensors(host: Host, facts: Facts) -> Iterator[Finding]:
    rapl, nvml = facts["rapl"], facts["nvml"]
    count = rapl["packages"]
    found = f"{count} package{'s' if count != 1 else ''}{', perf events' if rapl['perf'] else ''}"
    remedy = "its CPU joules are an estimate: a virtual machine has no counters; use a physical host"
    yield _row(host, "RAPL", found if count or rapl["perf"] else "none", count or rapl["perf"], remedy, "warn")
    there = int(nvml.get("gpus", 0))
    words = f"{there} GPU{'s' if there != 1 else ''}, driver {nvml['driver']}" if "driver" in nvml else nvml["error"]
    if host.gpus or "driver" in nvml:
        remedy = f"joulefeed_gpus is {host.gpus}: correct it, or install the NVIDIA driver"
        yield _row(host, "NVML", words, there >= host.gpus, remedy)


def _between(one: Session, other: Session) -> Finding:
    """Measure the data network between two hosts: TCP to a port of the kernel's choice, idle, then full each way."""
    name = f"{one.host.name} – {other.host.name}"
    remedy = "let the data network's hosts reach each other on all TCP ports: check routes, cables and nftables"
    try:
        served = one.ask({"do": "serve", "address": one.host.data_address}, _FACTS_S)
        request = {"host": one.host.data_address, "address": other.host.data_address, "port": served.get("port")}
        found = served if "error" in served else other.ask({"do": "measure", **request}, _PAIR_S)
    except ChildError as error:
        found = {"error": f"a host {error}"}
    if "error" in found:
        words = f"{other.host.data_address} does not reach {one.host.data_address}: {found['error']}"
        return Finding(name, "data network", words, "fail", remedy)
    rtt_ms, gbit = float(found["rtt_ms"]), min(float(found["from_gbit"]), float(found["to_gbit"]))
    words = f"{rtt_ms:.3f} ms, {found['from_gbit']:.2f} and {found['to_gbit']:.2f} Gbit/s by one TCP flow"
    if rtt_ms > _NEAR_MS:
        return Finding(name, "data network", words, "warn", f"regimes nearer than {rtt_ms:.1f} ms cannot be set")
    remedy = f"regimes faster than {gbit:.2f} Gbit/s cannot be set"
    if gbit < _MIN_GBIT:
        return Finding(name, "data network", words, "warn", remedy)
    return Finding(name, "data network", words, "ok")


def _row(host: Host, what: str, found: str, good: object, remedy: str, bad: Verdict = "fail") -> Finding:
    return Finding(host.name, what, found, "ok") if good else Finding(host.name, what, found, bad, remedy)
