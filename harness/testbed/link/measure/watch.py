"""Watches a link while a cell uses it: a ping every 100 ms, on a flow of its own, from outside of the cell.

A ping waits in the queue behind the loader's own packets. A delay beyond the round trip is the link's fault only where
the bytes that it carried meanwhile do not explain it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import TestbedError
from harness.system.procfs import interface_bytes
from harness.testbed.base import Node
from harness.testbed.link.measure.roundtrip import PACKET_BYTES, Pinger
from harness.testbed.link.namespace import enter

INTERVAL_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 1.0
"""A ping that has no answer so long after it was sent counts as lost when the watch ends; a younger one not at all."""
SEQUENCES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Ping:
    """One row of link.parquet."""

    utc_ns: int
    """When the request was sent."""
    rtt_ms: float | None
    """None where no answer came."""
    carried_bytes: int | None
    """What the interface sent and received between request and answer."""


SCHEMA: Final = pa.schema([("utc_ns", pa.int64()), ("rtt_ms", pa.float64()), ("carried_bytes", pa.int64())])


def ping_bytes(pings: Iterable[Ping], start_ns: int, end_ns: int, header_bytes: int) -> tuple[int, int]:
    """Return the bytes that the pings themselves had an interface receive and send between two instants (UTC ns).

    `header_bytes` is what the interface counts of a packet beyond its IP packet.
    """
    packet_bytes = PACKET_BYTES + header_bytes
    received = sent = 0
    for ping in pings:
        sent += start_ns <= ping.utc_ns <= end_ns
        received += ping.rtt_ms is not None and start_ns <= ping.utc_ns + ping.rtt_ms * 1e6 <= end_ns
    return received * packet_bytes, sent * packet_bytes


class LinkWatch:
    """Pings the address `peer` from a node of this host, from when it is started until it is left; then writes a file.

    Raises TestbedError, where it is left, when the link could not be pinged to the end.
    """

    def __init__(self, compute: Node, peer: str, path: Path) -> None:
        self._compute, self._peer, self._path = compute, peer, path
        self._rows: list[Ping] = []
        self._stop, self._left = os.pipe()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def pings(self) -> list[Ping]:
        """The pings in order of sending, once the context has been left."""
        return self._rows

    def start(self) -> None:
        """Start to ping; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="link-watch", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._left)
        if self._thread is not None:
            self._thread.join()
        os.close(self._stop)
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in self._rows], schema=SCHEMA), self._path)
        if self._failure is not None and error is None:
            raise TestbedError(f"the link was not watched to the cell's end: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            if self._compute.namespace is not None:
                enter(self._compute.namespace)
            self._watch()
        except BaseException as error:  # noqa: BLE001 - raised where the context is left
            self._failure = error

    def _watch(self) -> None:
        waiting: dict[int, tuple[int, int, int]] = {}
        sent, due_ns = 0, time.monotonic_ns()
        # The namespace is that of the calling thread alone.
        with Pinger(self._peer) as pinger, Path("/proc/thread-self/net/dev").open("rb") as counters:
            while True:
                now_ns = time.monotonic_ns()
                if now_ns >= due_ns:
                    sent = (sent + 1) % SEQUENCES
                    if (old := waiting.pop(sent, None)) is not None:
                        self._rows.append(Ping(old[0], None, None))
                    before = self._carried(counters)
                    waiting[sent] = (time.time_ns(), before, pinger.send(sent))
                    # A ping that is late does not make the following ones hurry.
                    due_ns = max(due_ns + round(INTERVAL_S * 1e9), time.monotonic_ns())
                    continue
                ready, _, _ = select.select((pinger.fileno(), self._stop), (), (), (due_ns - now_ns) / 1e9)
                if self._stop in ready:
                    break
                if ready and (answer := pinger.receive()) is not None and answer[0] in waiting:
                    utc_ns, before, _ = waiting.pop(answer[0])
                    self._rows.append(Ping(utc_ns, answer[1] / 1e6, self._carried(counters) - before))
        now_ns = time.monotonic_ns()
        lost = [Ping(utc_ns, None, None) for utc_ns, _, at in waiting.values() if now_ns - at > ANSWER_TIMEOUT_S * 1e9]
        self._rows = sorted([*self._rows, *lost], key=lambda row: row.utc_ns)

    def _carried(self, counters: BinaryIO) -> int:
        # Opening the file costs more than all else that a ping takes.
        text = os.pread(counters.fileno(), 1 << 16, 0).decode()
        return sum(interface_bytes(text, self._compute.interface or "") or ())
