"""The user-space delay line as a process: `python -m harness.testbed.link.userspace.relay STORAGE_NS COMPUTE_NS`.

It makes a TUN device in each namespace and carries packets between them. It answers calls on standard input and output
(`joulefeed.calls`); the end of standard input ends the process.

    set(directions, paths)    fields of Impairment, storage to compute first; of each path both directions at once
    counters()                -> fields of LinkCounters
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from harness.errors import TestbedError
from harness.testbed.link.namespace import INTERFACE, enter
from harness.testbed.link.userspace.delay_line import DelayLine, Impairment
from harness.testbed.link.userspace.paths import Paths
from harness.testbed.link.userspace.tun import READ_BYTES, open_tun
from joulefeed.calls import Answers
from joulefeed.scheduling import exact_timers, raise_priority

READS_PER_TURN = 32
"""Reading more before letting packets go would make those that are due late."""
WAKE_NS = 80_000
"""A CPU that slept takes up to this long to wake: on a quiet link sleep this much less and poll for the rest."""
FEW_PACKETS = 2
"""The link is quiet when no more than this are on their way."""
IDLE_S = 0.05
"""How often an idle relay looks whether its parent still lives, and that it itself was not stopped."""
NICE = -20


class Relay:
    """Carries packets between two TUN devices until its commands end."""

    def __init__(self, storage_fd: int, compute_fd: int, command_fd: int, answer_fd: int) -> None:
        self._links = (DelayLine(seed=1), DelayLine(seed=2))
        self._ends = ((storage_fd, compute_fd), (compute_fd, storage_fd))
        self._use(())
        self._command_fd = command_fd
        self._answers = Answers(
            {"set": self._set, "counters": self._counters}, write=lambda line: os.write(answer_fd, line.encode())
        )
        self._pending = b""
        self._write_drops = 0
        self._pause_ns = 0

    def _use(self, impairments: Sequence[Impairment]) -> None:
        """Send TCP connections over paths from now on; without impairments all packets take the link's own lines."""
        self._paths = paths = Paths(self._links, impairments) if impairments else None
        accepts = [link.accept if paths is None else partial(paths.accept, way) for way, link in enumerate(self._links)]
        others = paths.lines if paths is not None else ()
        waiting = [(link, *(pair[way] for pair in others)) for way, link in enumerate(self._links)]
        self._lines: list[DelayLine] = [line for lines in waiting for line in lines]
        self._routes = [
            (source, accept, lines, sink)
            for (source, sink), accept, lines in zip(self._ends, accepts, waiting, strict=True)
        ]
        """By direction: where packets come from, what accepts them, where they wait, and where they go."""

    def run(self) -> None:
        """Carry packets until standard input ends or the parent dies."""
        parent = os.getppid()
        clock, read = time.monotonic_ns, os.read
        watched = [self._command_fd, *(source for source, _ in self._ends)]
        turned_ns = clock()
        while os.getppid() == parent:
            wait_s = self._wait_s()
            ready, _, _ = select.select(watched, (), (), wait_s)
            began_ns, turned_ns = turned_ns, clock()
            if (pause_ns := turned_ns - began_ns - int(wait_s * 1e9)) > self._pause_ns:
                self._pause_ns = pause_ns
            for source, accept, lines, sink in self._routes:
                now_ns = clock()
                for line in lines:
                    self._release(line, sink, now_ns)
                if source not in ready:
                    continue
                try:
                    for _ in range(READS_PER_TURN):
                        packet = read(source, READ_BYTES)
                        now_ns = clock()
                        accept(packet, now_ns)
                        # On a near link the packet is due at once; it does not wait for the next one's reading.
                        for line in lines:
                            self._release(line, sink, now_ns)
                except BlockingIOError:
                    pass
            if self._command_fd in ready and not self._obey():
                return

    def _release(self, line: DelayLine, sink: int, now_ns: int) -> None:
        """Write the packets that are due."""
        waiting = line.waiting
        while waiting and waiting[0][0] <= now_ns:
            try:
                os.write(sink, waiting.popleft()[1])
            except OSError:  # the interface is down or its memory is short: what a full queue does too
                self._write_drops += 1

    def _wait_s(self) -> float:
        """Return for how many seconds to sleep: until shortly before the next packet is due, at most `IDLE_S`."""
        due_ns = min((line.waiting[0][0] for line in self._lines if line.waiting), default=None)
        if due_ns is None:
            return IDLE_S
        left_ns = due_ns - time.monotonic_ns()
        # Under load the CPU does not fall asleep between packets, and polling would take it from the loaders.
        early_ns = WAKE_NS if sum(len(line.waiting) for line in self._lines) <= FEW_PACKETS else 0
        return min(IDLE_S, max(0, left_ns - early_ns) / 1e9)

    def _obey(self) -> bool:
        """Read and answer calls; False when there will be no more."""
        chunk = os.read(self._command_fd, 65536)
        if not chunk:
            return False
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        try:
            for line in lines:
                self._answers.answer(line)
        except BrokenPipeError:
            return False
        return True

    def _set(self, directions: Sequence[dict[str, Any]], paths: Sequence[dict[str, Any]]) -> None:
        for line, fields in zip(self._links, directions, strict=True):
            line.configure(Impairment(**fields))
        if self._paths is not None:
            self._paths.dissolve()
        self._use([Impairment(**fields) for fields in paths])

    def _counters(self) -> dict[str, object]:
        pause_ns, self._pause_ns = self._pause_ns, 0
        return {
            # A path that is too slow for its connections drops packets as it is asked to.
            "drops": sum(line.drops for line in self._links) + self._write_drops,
            "packets": sum(line.packets for line in self._lines),
            "bytes": sum(line.bytes for line in self._lines),
            "cpu_s": time.process_time(),
            # The longest turn of the loop beyond what it meant to sleep, since it was last asked.
            "pause_s": pause_ns / 1e9,
            "paths": [] if self._paths is None else [asdict(path) for path in self._paths.counters()],
        }


def main(argv: list[str]) -> int:
    """Make both devices, announce them and carry packets; return the exit status."""
    storage_namespace, compute_namespace = argv
    try:
        enter(storage_namespace)
        storage_fd = open_tun(INTERFACE)
        enter(compute_namespace)
        compute_fd = open_tun(INTERFACE)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    # Packets and their times have no reference cycles: a collection would only pause the line.
    gc.collect()
    gc.freeze()
    gc.disable()
    print(json.dumps({"ready": True, "priority": raise_priority(NICE)}), flush=True)
    with exact_timers():
        Relay(storage_fd, compute_fd, command_fd=sys.stdin.fileno(), answer_fd=sys.stdout.fileno()).run()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # the harness ended before the line was up: its devices go with this process
        os._exit(1)
