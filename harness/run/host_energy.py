"""Energy on the other hosts of a run: an agent on each, their readings and clocks after every cell.

`python -m harness.run.host_energy` runs one on a host, over the supervisor. It answers the calls `start`, then `clock`,
`ntp`, `edge`, `spin`, and `readings` of a span. The end of standard input ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import psutil

from energymon import Baseline, ClockOffset, Event, Reading, SqliteStore
from energymon.clock.chrony import ntp_offset
from energymon.clock.offsets import at_wall
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError, HarnessError, TestbedError
from harness.results.cells import HostClock, HostRecord, SensorRecord
from harness.results.files import parse_value
from harness.run.energy_agent import EnergyAgent
from harness.system.heat import Heat
from harness.system.host_state import HostState
from harness.system.process import processes_of_run
from harness.system.procfs import cpu_s, family, host_cpu, kernel_threads
from harness.system.spin import Spin, measure_spin
from harness.testbed import Testbed
from harness.testbed.hosts.session import compare_clocks
from joulefeed.calls import Answers, CallError, call, request, wait_answer
from joulefeed.child import Child, ChildError

_START_S: Final = 300.0
"""A slow host takes a while to import what an agent needs; one that ends says so at once."""
_ANSWER_S: Final = 60.0
_EXCHANGES: Final = 8
TOKEN_VARIABLE: Final = "INFLUXDB_V2_TOKEN"  # noqa: S105 - the name of a variable
_FOLDER: Final = "agent"


@dataclass(frozen=True, slots=True)
class _HostAgent:
    """The agent of one other host."""

    host: str
    roles: tuple[str, ...]
    child: Child
    description: Mapping[str, Any]

    def ask(self, do: str, **arguments: Any) -> Any:
        try:
            return call(self.child, do, timeout_s=_ANSWER_S, **arguments)
        except (ChildError, CallError) as error:
            raise CellError(f"host {self.host}: its energy agent: {error}") from error


@dataclass(frozen=True, slots=True)
class HostEdge:
    """CPU time and state of a host at an epoch's edge."""

    cpu_s: Mapping[str, float]
    """CPU seconds so far, as `count_cpu` returns them."""
    state: Mapping[str, object] = field(default_factory=dict)
    """The values of its HostState; empty of the lead."""


class HostAgents:
    """The agents of all other hosts of a run; what they stored is fetched when the context is left.

    Each host gets a folder in `hosts` of the run's results folder, whose name is the run's in the server that gets the
    readings. `note` is called with a line about what could not be fetched. Raises TestbedError when an agent does not
    start.
    """

    def __init__(
        self,
        testbed: Testbed,
        spec: EnergySpec,
        folder: Path,
        send: StoreSpec,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._testbed, self._folder, self._note = testbed, folder / "hosts", note
        # The agent takes the name of the run from its folder.
        self._there = Path(_FOLDER, folder.name)
        # A meter that the config names is this host's.
        self._energy = spec.model_dump()
        self._settings = {"store": send.model_dump(), "token": read_token(send)}
        self._interval_ms, self._idle_s = spec.interval_ms, spec.idle_s
        self._agents: list[_HostAgent] = []

    @property
    def sensors(self) -> Mapping[str, object]:
        """What the agents say of their sensors, by host."""
        return {agent.host: agent.description.get("sensors", []) for agent in self._agents}

    def require(self) -> None:
        """Raise CellError, which names the host, when an agent is gone, TestbedError when a host is."""
        self._testbed.require()
        for agent in self._agents:
            if not agent.child.is_alive:
                raise CellError(f"host {agent.host}: its energy agent {agent.child.describe_end()}")

    def clocks(self) -> dict[str, HostClock]:
        """Measure the offsets of the hosts' clocks from this one's, by host. Raises CellError."""
        found = {}
        for agent in self._agents:
            if self._testbed.shares_clock(agent.host):
                found[agent.host] = HostClock("one clock", 0.0, 0.0)
                continue
            exchanged = compare_clocks(partial(agent.ask, "clock"), _EXCHANGES)
            told = agent.ask("ntp")
            there = None if told is None else ClockOffset(**told)
            found[agent.host] = compute_clock_offset(*exchanged, ntp_offset("lead", time.time_ns()), there)
        return found

    def read_edges(self, here: EnergyAgent) -> dict[str, HostEdge]:
        """Return CPU time and state of all hosts of the run, now; nothing of a run on one. Raises CellError.

        `here` is the agent of this host, whose state the cell's events have.
        """
        if not self._agents:
            return {}
        found = {here.node: HostEdge(count_cpu(find_processes(self._testbed.run_id, here.pid)))}
        return found | {agent.host: HostEdge(**agent.ask("edge")) for agent in self._agents}

    def measure_spins(self) -> dict[str, Spin]:
        """Return what a fixed piece of work takes each other host. Raises CellError."""
        return {agent.host: Spin(**agent.ask("spin")) for agent in self._agents}

    def records(
        self, start_ns: int, end_ns: int, before: Mapping[str, HostClock], after: Mapping[str, HostClock]
    ) -> tuple[list[HostRecord], list[Reading]]:
        """Return what a cell stores of each other host, and its readings, between two instants of this clock, UTC ns.

        Raises CellError.
        """
        records, readings = [], []
        for agent in self._agents:
            ahead_ns = round(1e6 * (before[agent.host].offset_ms + after[agent.host].offset_ms) / 2)
            answer = agent.ask("readings", start_ns=start_ns + ahead_ns, end_ns=end_ns + ahead_ns)
            readings += [Reading(**one) for one in answer["readings"]]
            records.append(
                HostRecord(
                    host=agent.host,
                    roles=agent.roles,
                    interval_ms=self._interval_ms,
                    offset_ns=answer["start_ns"] - start_ns,
                    series=parse_value(tuple[SensorRecord, ...], answer["series"]),
                    unreadable=parse_value(tuple[SensorRecord, ...], answer["unreadable"]),
                    events=[Event(**one) for one in answer["events"]],
                    idle=[Baseline(**one) for one in answer["idle"]],
                    idle_cpu_util=answer["idle_cpu_util"],
                    clock_before=before[agent.host],
                    clock_after=after[agent.host],
                )
            )
        return records, readings

    def __enter__(self) -> Self:
        computing = {node.host for node in self._testbed.computes}
        storing = {node.host for node in self._testbed.storages}
        argv = [sys.executable, "-m", "harness.run.host_energy"]
        started: list[tuple[str, Child]] = []
        try:
            for host, node in self._testbed.remotes.items():
                (self._folder / host).mkdir(parents=True, exist_ok=True)
                log = self._folder / host / "agent.log"
                child = node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
                started.append((host, child))
                own = {"node": host, "run_id": node.run_id, "folder": str(node.folder / self._there)}
                energy = {**self._energy, "wall": self._testbed.wall_of(host)}
                with suppress(ChildError):  # the wait says why
                    child.send(request("start", energy=energy, **self._settings, **own))
            for host, child in started:
                try:
                    description = wait_answer(child, "start", timeout_s=_START_S + self._idle_s)
                except (ChildError, CallError) as error:
                    raise TestbedError(f"host {host}: its energy agent: {error}") from error
                roles = [role for role, hosts in (("compute", computing), ("storage", storing)) if host in hosts]
                self._agents.append(_HostAgent(host, tuple(roles), child, description))
        except BaseException:
            for _, child in started:
                child.stop(eof_s=0)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        nodes = self._testbed.remotes

        def end(agent: _HostAgent) -> None:
            agent.child.stop()
            try:
                nodes[agent.host].fetch(nodes[agent.host].folder / self._there, self._folder / agent.host)
            except HarnessError as failure:
                self._note(f"what the energy agent of host {agent.host} stored was not fetched: {failure}")

        with ThreadPoolExecutor(max(1, len(self._agents))) as threads:
            list(threads.map(end, self._agents))


def compute_clock_offset(
    error_ns: float, offset_ns: float, here: ClockOffset | None, there: ClockOffset | None
) -> HostClock:
    """Return another host's clock minus this one's, by the quickest exchange with it or by what NTP says on both.

    The error of an exchange over SSH is at most half of its round trip. `here` and `there` are UTC minus the clock of
    each host, as its NTP daemon or its kernel reports it. They count where their error is smaller and they agree.
    """
    if here is not None and there is not None:
        ntp_ns, ntp_error_ns = here.offset_ns - there.offset_ns, here.error_ns + there.error_ns
        if abs(ntp_ns - offset_ns) <= ntp_error_ns + error_ns and ntp_error_ns < error_ns:
            return HostClock(there.peer, ntp_ns / 1e6, ntp_error_ns / 1e6)
    return HostClock("exchange over SSH", offset_ns / 1e6, error_ns / 1e6)


def find_processes(run_id: str, agent_pid: int | None) -> dict[str, set[int]]:
    """Return the run's processes on this host with their children, by what they do.

    That is the `loader` (cells and their workers), the `daemon`, the `mount` and the `monitor` of energy; what has no
    process here is left out.
    """
    roots: dict[str, list[int]] = {"mount": [*kernel_threads("nfsd")]}
    for pid in processes_of_run(run_id):
        with suppress(psutil.Error):
            if part := _part_of(psutil.Process(pid).cmdline()):
                roots.setdefault(part, []).append(pid)
    if agent_pid is not None:
        roots["monitor"] = [agent_pid]
    return {name: {pid for root in pids for pid in family(root)} for name, pids in roots.items() if pids}


def count_cpu(processes: Mapping[str, Collection[int]]) -> dict[str, float]:
    """Return CPU seconds of this host's processors (`busy`), and of processes by what they do."""
    counted = {name: cpu_s(pids) for name, pids in processes.items()}
    return {"busy": host_cpu().used_s(time.monotonic()), **counted}


def _part_of(argv: Sequence[str]) -> str | None:
    """Return what a process of the run does, from its command line; None for its helpers, such as an SSH client."""
    names = [Path(argument).name for argument in argv]
    if "ssh" in names[:1]:
        return None
    if "harness.cell" in argv:
        return "loader"
    if "-m" in argv and "serve" in argv:
        return "daemon"
    return "mount" if {"sshfs", "sshd"} & set(names) else None


def read_token(send: StoreSpec) -> str | None:
    """Return the server's token; other hosts have neither the file nor the environment."""
    if send.kind != "influxdb":
        return None
    return Path(send.token_file).read_text().strip() if send.token_file else os.environ.get(TOKEN_VARIABLE)


class _Answering:
    """The agent of this host, which answers the lead; it is ended when `stack` is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(
        self, *, energy: dict[str, Any], store: dict[str, Any], token: str | None, node: str, run_id: str, folder: str
    ) -> object:
        """Start it; returns its description."""
        # Below the run's folder, which is gone when the host's lease has ended: nothing is left behind then.
        Path(folder).parent.mkdir(exist_ok=True)
        Path(folder).mkdir(exist_ok=True)
        if token:
            os.environ[TOKEN_VARIABLE] = token
        self._run_id = run_id
        self._heat = self._stack.enter_context(Heat())
        self._agent = EnergyAgent(
            Path(folder, "energy.sqlite"),
            EnergySpec(**energy),
            StoreSpec(**{**store, "token_file": None}),
            node=node,
            run_id=run_id,
            on_restart=lambda message: print(message, file=sys.stderr, flush=True),
        )
        self._stack.enter_context(self._agent)
        return dict(self._agent.description)

    def clock(self) -> int:
        """Return the time by this clock, UTC ns."""
        return time.time_ns()

    def ntp(self) -> object:
        """Return what the NTP daemon says of this clock."""
        own = ntp_offset(self._agent.node, time.time_ns())
        return None if own is None else own._asdict()

    def edge(self) -> object:
        """Return the values of this host's HostEdge."""
        processes = find_processes(self._run_id, self._agent.pid)
        pids = set().union(*processes.values())
        return {"cpu_s": count_cpu(processes), "state": asdict(HostState.read(pids, self._heat.read()))}

    def spin(self) -> object:
        """Return what a fixed piece of work takes this host."""
        return asdict(measure_spin())

    def readings(self, *, start_ns: int, end_ns: int) -> object:
        """Return what the agent stored between two instants of this host's clock, UTC ns. Raises HarnessError."""
        agent = self._agent
        agent.require()
        if agent.description:
            with SqliteStore.open(agent.store) as store:
                clocks = store.clocks(agent.node)
            start_ns, end_ns = at_wall(clocks, start_ns).t_ns, at_wall(clocks, end_ns).t_ns
        return {
            "start_ns": start_ns,
            "readings": [reading._asdict() for reading in agent.readings(start_ns, end_ns)],
            "events": [event._asdict() for event in agent.events(start_ns, end_ns)],
            "series": agent.series,
            "unreadable": [dict(one) for one in agent.unreadable],
            "idle": [one._asdict() for one in agent.idle],
            "idle_cpu_util": agent.idle_cpu_util,
        }


def main() -> int:
    """Answer the calls of the lead until standard input ends; returns the exit status."""
    with ExitStack() as stack:
        own = _Answering(stack)
        handlers = {name: getattr(own, name) for name in ("start", "clock", "ntp", "edge", "spin", "readings")}
        Answers(handlers, (HarnessError,)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
