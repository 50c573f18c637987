"""Joules of a part of a program: `with energymon.Window("epoch") as w: ...`, then `w.joules`."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from energymon.agent.cpu_time import AttributedEnergy, CpuShare
from energymon.agent.direct import Meter, Span, shared_meter
from energymon.agent.process import Agent, shared_agent, wait_until_read
from energymon.analysis.attribution import EnergyComponent, channels_of, of_boards
from energymon.analysis.query import WindowEnergy, query, with_resonances
from energymon.clock.monotonic import NS, boot_id, boot_ns, utc_text
from energymon.errors import EnergyError, OptionError, WindowError
from energymon.reading import Event, Session
from energymon.sampling.edges import Asker, is_abandoned
from energymon.sensors.boards import CUDA, VISIBLE, boards_of, choose_boards, name_boards
from energymon.store import SqliteStore

STORE: Final = "ENERGYMON_STORE"
"""Environment variable that names the store of an agent that runs already: a file."""


class Window:
    """What a node uses between entering and leaving the context.

    Windows may nest, overlap and be used in several threads. The store is the one given, else that of `agent`, else the
    one that ENERGYMON_STORE names; without any, the first window of the process starts an agent that samples this host
    until the process ends. The figures wait until the store has a reading past the window's end, and are then kept.

    With `async with` the event loop goes on while an agent starts, and in `await window.settled()` while the figures
    are waited for.
    """

    def __init__(
        self,
        name: str = "",
        *,
        sync_cuda: bool = False,
        node: str | None = None,
        store: Path | str | None = None,
        agent: Agent | None = None,
        period_s: float | None = None,
        direct: bool | Meter = False,
        boards: str = VISIBLE,
        attribute: str | Path | None = None,
    ) -> None:
        """Take what to measure; nothing is read yet.

        Args:
            name: Name for messages; default none.
            sync_cuda: Whether CUDA is synchronised at the edges, if torch uses it; default no.
            node: Whose energy; default this host's, or that of the store's only node.
            store: Store of an agent that runs already; default see above.
            agent: Agent that samples; default see above.
            period_s: Time after which the load repeats, such as a training step, s; an event in `energy` then says
                where a sensor resonates with it; default unknown.
            direct: Whether this process reads the counters itself, in microseconds, or the meter that does; default no.
            boards: GPU boards of this host that count: those that CUDA_VISIBLE_DEVICES names ("visible"), "all", or
                indices of NVML and UUIDs, joined by commas; default "visible".
            attribute: Whose share of the CPU's joules is `attributed`: "process" or a control group's folder; default
                nobody's.
        """
        if direct and (store or agent or node):
            raise OptionError("a direct window reads the counters of this host: expected no store, agent or node")
        self.name = name
        self._sync_cuda, self._node, self._agent, self._period_s = sync_cuda, node, agent, period_s
        self._direct, self._boards, self._owner = direct, boards, attribute
        self._where = Path(store) if store else None
        """The store of the readings; None until it is known."""
        self._span: Span | None = None
        self._environment: Mapping[str, str] = {}
        self._share: CpuShare | None = None
        self._is_here = bool(direct)
        """Whether the readings are of this host, since it was booted."""
        self._start_ns = self._end_ns = 0
        self._began_ns = self._ended_ns = 0
        """The same instants as ns of `boot_ns`."""
        self._asker: Asker | None = None
        self._reading = threading.Lock()
        self._found: WindowEnergy | None = None
        self._failed: EnergyError | None = None

    def __enter__(self) -> Self:
        self._prepare()
        return self._begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._sync_cuda and kind is None:
            _synchronize_cuda()
        self._end()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._prepare)
        return self._begin()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._sync_cuda and kind is None:
                await asyncio.to_thread(_synchronize_cuda)
        finally:
            self._end()

    async def settled(self) -> Self:
        """Wait for the figures, which are there at once then; the event loop goes on meanwhile."""
        await asyncio.to_thread(self.settle)
        return self

    def _prepare(self) -> None:
        """Find or start what reads the sensors."""
        if self._start_ns:
            raise WindowError(f"{self._label()} was used before; make another one")
        self._environment = {name: os.environ[name] for name in CUDA if name in os.environ}
        if self._direct:
            self._direct = self._direct if isinstance(self._direct, Meter) else shared_meter()
        else:
            self._locate()
        if self._sync_cuda:
            _synchronize_cuda()

    def _begin(self) -> Self:
        self._share = None if self._owner is None else CpuShare(self._owner)
        self._start_ns, self._began_ns = self._edge()
        return self

    def _end(self) -> None:
        self._end_ns, self._ended_ns = self._edge()
        if self._share is not None:
            self._share.end()
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    @property
    def start_ns(self) -> int:
        """UTC ns."""
        return self._start_ns

    @property
    def end_ns(self) -> int:
        """UTC ns; raises WindowError while the window is open."""
        self._require_end()
        return self._end_ns

    @property
    def duration_s(self) -> float:
        """Seconds, by a clock that nobody sets; raises WindowError while the window is open."""
        self._require_end()
        return (self._ended_ns - self._began_ns) / NS

    @property
    def energy(self) -> WindowEnergy:
        """All that is known of the window: series, components, events; raises what `joules` raises."""
        with self._reading:
            if self._found is None:
                if self._failed is not None:
                    raise self._failed
                self._found = self._look_up()
            return self._found

    def settle(self) -> None:
        """Look up the figures of a window that has ended, or why there are none, before its store is removed."""
        if self._end_ns:
            try:
                _ = self.energy
            except EnergyError as error:
                self._failed = error

    @property
    def joules(self) -> float:
        """Joules of everything that is measured on the node.

        Raises WindowError while the window is open and when a device has no figure for it, and StoreError.
        """
        total = self._total()
        if total.joules is None:
            lost = ", ".join(total.lost)
            raise WindowError(f"{self._label()} has no figure of {lost}, and so no total{_event_lines(self.energy)}")
        return total.joules

    @property
    def error_j(self) -> float | None:
        """Bound of the error of `joules`; None when they contain an estimate."""
        return self._total().error_j

    @property
    def accuracy_j(self) -> float | None:
        """Bound of what the sensors do not see or show wrongly, J; None where `energy.best` says why it is unknown."""
        return self._total().accuracy_j

    @property
    def net_joules(self) -> float | None:
        """Joules beyond the node's idle baseline; None when there is no baseline of every series."""
        return self._total().net_j

    @property
    def attributed(self) -> AttributedEnergy:
        """The share of the CPU's joules that is attributed to a process or group by CPU time; no measurement.

        Raises OptionError without `attribute`, WindowError where the share is unknown, and what `energy` raises.
        """
        energy = self.energy
        if self._share is None or not self._is_here:
            raise OptionError(f'{self._label()} attributes nothing: expected attribute="process" and this host')
        return self._share.of(energy)

    @property
    def estimated(self) -> bool:
        """Whether any of the joules are an estimate."""
        return self._total().estimated

    @property
    def by_domain(self) -> dict[str, float | None]:
        """Joules of cpu, dram and gpu, of those that are measured; None for one of which a device has no figure."""
        return {c.name: c.joules for c in self.energy.components if c.name != "total"}

    @property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """Where the joules of each domain are from; "estimate" is no measurement."""
        return {c.name: c.sources for c in self.energy.components if c.name != "total"}

    def _locate(self) -> None:
        """Find whose readings these will be, before the window begins; raises SensorError and AgentError."""
        if self._where is not None:
            return
        if self._agent is None and (named := os.environ.get(STORE)):
            self._where = Path(named)
            self._require_agent(self._where)
            return
        self._agent = self._agent or shared_agent()
        self._where = self._agent.store
        if self._agent.is_gone:
            details = f"; it said: {self._agent.stderr_text}" if self._agent.stderr_text else ""
            raise WindowError(
                f"{self._label()}: its agent is dead or was stopped, and samples nothing; start another one{details}"
            )
        self._node = self._node or self._agent.node
        self._agent.serve(self)

    def _edge(self) -> tuple[int, int]:
        """Have the sensors read, where that can be asked for; return the instant after it, UTC ns and `boot_ns`."""
        if isinstance(self._direct, Meter):
            if self._span is None:
                self._span = self._direct.begin()
                return self._span.start_utc_ns, self._span.start_ns
            self._span.end()
            return self._span.end_utc_ns, self._span.end_ns
        assert self._where is not None
        with suppress(OSError):  # the agent has ended or is another user's: the ticks bound the window
            self._asker = self._asker or Asker(self._where)
        read_ns = self._asker.edge_ns() if self._asker is not None else None
        utc_ns, now_ns = time.time_ns(), boot_ns()
        return (utc_ns, now_ns) if read_ns is None else (utc_ns - (now_ns - read_ns), read_ns)

    def _require_end(self) -> None:
        if not self._end_ns:
            raise WindowError(f"{self._label()} has no end yet; its figures are there after the `with` statement")

    def _require_agent(self, named: Path) -> None:
        """Refuse a store whose agent has ended: nothing would be sampled."""
        with SqliteStore.open(named) as store:
            sessions = store.sessions()
        node, what = self._node_of(sessions), ""
        last = max((s for s in sessions if s.node == node), key=lambda s: s.start_ns, default=None)
        if last is not None and last.end_ns is not None:
            what = f"ended at {utc_text(last.end_ns)}"
        elif last is not None and last.description.get("boot_id") == boot_id() and is_abandoned(named):
            what = f"(process {last.description['pid']}) is dead"
        if what:
            raise WindowError(
                f"{STORE}={named}: the agent of {node} {what}, and nothing samples into this store; start `energymon "
                f"run` with it, or unset {STORE}"
            )

    def _look_up(self) -> WindowEnergy:
        self._require_end()
        if self._span is not None:
            meter = self._span.meter
            channels = channels_of(meter.description, meter.node)
            found = with_resonances(meter.energy(self._span), channels, self._period_s)
            return self._counted(found, meter.description)
        assert self._where is not None
        if self._agent is not None and self._agent.temporary and not self._where.exists():
            raise WindowError(
                f"{self._label()} cannot be read: the temporary store of its agent, of process {self._agent.owner}, is "
                "removed; read figures inside the agent's `with` statement, or give the Agent a store"
            )
        with SqliteStore.open(self._where) as store:
            return self._look_up_in(store)

    def _look_up_in(self, store: SqliteStore) -> WindowEnergy:
        sessions = store.sessions()
        node = self._node_of(sessions)
        own = [s for s in sessions if s.node == node]
        here = [s for s in own if s.description.get("boot_id") == boot_id()]
        start_ns, end_ns = self._start_ns, self._end_ns
        clock: Literal["readings", "own"] = "own"
        if here:
            # All agents of a store since the machine was booted have one clock, which is known.
            offset_ns = cast(int, here[-1].description["boot_offset_ns"])
            start_ns, end_ns, clock = self._began_ns + offset_ns, self._ended_ns + offset_ns, "readings"
        session = max((s for s in own if s.start_ns <= end_ns), key=lambda s: s.start_ns, default=None)
        if session is None:
            there = ", ".join(sorted({s.node for s in sessions})) or "no node"
            raise WindowError(f"{self._label()}: node {node!r} had no agent by then; the store has {there}")
        wait_until_read(store, session, end_ns, self._ended_ns, self._agent)
        (found,) = query(store, start_ns, end_ns, node, net=True, clock=clock, period_s=self._period_s)
        if not found.components or not found.energies:
            raise self._uncovered(store, end_ns, found)
        found = replace(found, start_ns=self._start_ns, end_ns=self._end_ns)
        self._is_here = bool(here)
        return self._counted(found, session.description) if here else found

    def _counted(self, found: WindowEnergy, description: Mapping[str, Any]) -> WindowEnergy:
        """Leave out the boards of this host that do not count, and say so; raises OptionError and WindowError."""
        boards = boards_of(description)
        if (counted := choose_boards(self._boards, boards, self._environment)) is not None:
            found = of_boards(found, channels_of(description, found.node), counted)
            event = Event(self._start_ns, found.node, "boards", name_boards(boards, counted))
            found = replace(found, events=(event, *found.events))
        if not found.components or not found.energies:
            raise WindowError(f"{self._label()} has no figure of anything that counts{_event_lines(found)}")
        return found

    def _node_of(self, sessions: list[Session]) -> str:
        nodes = {s.node for s in sessions}
        return self._node or (nodes.pop() if len(nodes) == 1 else platform.node())

    def _uncovered(self, store: SqliteStore, end_ns: int, found: WindowEnergy) -> WindowError:
        node = found.node
        before = [r.t_ns for r in store.readings(end_ns, end_ns, node) if r.t_ns <= end_ns]
        if found.covered:
            spans = ", ".join(f"{utc_text(begin)} to {utc_text(end)}" for begin, end in found.covered)
            covered = f"{node} has readings from {spans}"
        elif before:
            covered = f"the last reading of {node} before its end is of {utc_text(max(before))}"
        else:
            covered = f"there is no reading of {node} before its end"
        details = _event_lines(found)
        # A store that takes nothing has no event of it either.
        with suppress(OSError), closing(Asker(store.path)) as asker:
            if asker.edge_ns() is not None and asker.problem:
                details += f"\n  store-failed: {asker.problem}"
        if self._agent is not None and self._agent.is_gone:
            details += f"\nthe agent is gone; it said: {self._agent.stderr_text or 'nothing'}"
        return WindowError(
            f"{self._label()}, {utc_text(self._start_ns)} to {utc_text(self._end_ns)}, is not covered by any series: "
            f"{covered}; expected an agent that samples throughout{details}"
        )

    def _total(self) -> EnergyComponent:
        return next(c for c in self.energy.components if c.name == "total")

    def _label(self) -> str:
        return f"the window {self.name!r}" if self.name else "the window"


def _event_lines(window: WindowEnergy) -> str:
    """Return the agent's events in the window, a line each."""
    return "".join(f"\n  {event.kind}: {event.message}" for event in window.events)


def _synchronize_cuda() -> None:
    """Wait for all work that was launched on every GPU that torch uses in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        # On a board that this process never used, synchronising would make a context of hundreds of megabytes.
        if torch.cuda.max_memory_reserved(device) > 0:
            torch.cuda.synchronize(device)
