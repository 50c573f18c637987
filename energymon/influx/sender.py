"""The sender: a process that sends what an agent's SQLite store holds to an InfluxDB server, in order, losing nothing.

The store notes what the server has acknowledged, so the sender can die at any moment: lines that are sent again write
the same points. Prints a line of JSON at every change of its state.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from energymon.errors import EnergyError, OptionError, StoreError
from energymon.influx.client import InfluxClient, PartialWriteError, RequestTooLarge, ServerUnavailable, WriteRejected
from energymon.influx.cursor import BusyError, LineBatch, StoreCursor
from energymon.influx.settings import InfluxSettings

_POLL_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0
_PATIENCE_S: Final = 2.0
"""After the end of its agent a sender waits so long for an answer."""
_TRIM_S: Final = 5.0
_TELL_S: Final = 60.0
"""How often lines that were set aside are reported at most."""
_ISOLATING_POSTS: Final = 64
"""Spent on finding bad lines of one request; the rest is set aside with its neighbours, which the server has."""
_NO_POINTS: Final = "# energymon"
"""A comment, which writes nothing and which every server takes."""


def backoff_s(failures: int, draw: Callable[[], float] = random.random) -> float:
    """Return how long to wait after `failures` in a row: 0.5 s, doubled each time up to 30 s, the half of it drawn."""
    bound_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * (1 << min(failures - 1, 10)))
    return bound_s * (0.5 + 0.5 * draw())


def send(store: Path, *, until_eof: bool, drain_s: float, limit_bytes: int | None) -> int:
    """Send a store to the server that the environment names; return the exit status.

    That is 0 when all was sent, 1 when something stays in the store, 2 for an error, which is printed.

    Args:
        store: File that an agent writes, or wrote.
        until_eof: Whether to go on, while an agent writes, until stdin ends, and then to send the rest.
        drain_s: How long to go on after the end of stdin, or without it while nothing can be sent, s.
        limit_bytes: Size of the store near which sent readings are deleted, oldest first; None for no limit.
    """
    try:
        settings = InfluxSettings.from_environment()
        if warning := settings.warning():
            print(f"energymon: {warning}", file=sys.stderr)
        stop = StopListener(until_eof=until_eof)
        with _open(store, stop) as cursor, InfluxClient(settings) as client:
            return Sender(cursor, client, stop, drain_s, limit_bytes).run()
    except (OptionError, StoreError) as error:
        _say("refused", str(error), None)
        return 2


class StopListener:
    """Waits until a time, or until the sender must end: the end of stdin, SIGTERM or SIGINT."""

    def __init__(self, *, until_eof: bool) -> None:
        self.until_eof = until_eof
        self.eof = False
        self.killed = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wait(self, timeout_s: float) -> None:
        """Return after `timeout_s`, or as soon as there is something to hear or another thread calls `wake`."""
        if self.killed:
            return
        heeded = [self._fd, *([0] if self.until_eof and not self.eof else [])]
        ready, _, _ = select.select(heeded, [], [], max(0.0, timeout_s))
        if 0 in ready and not os.read(0, 4096):
            self.eof = True
        if self._fd in ready:
            os.eventfd_read(self._fd)

    def wake(self) -> None:
        """Have `wait` return."""
        os.eventfd_write(self._fd, 1)

    def _on_signal(self, number: int, frame: object) -> None:
        self.killed = True
        self.wake()


class Sender:
    """Takes batches from a store to a server until there is nothing left, or for as long as an agent writes."""

    def __init__(
        self, cursor: StoreCursor, client: InfluxClient, stop: StopListener, drain_s: float, limit_bytes: int | None
    ) -> None:
        """Take the store, the server and what ends the sender; the rest as for `send`."""
        self._cursor, self._client, self._stop = cursor, client, stop
        self._until_eof, self._drain_s, self._limit_bytes = stop.until_eof, drain_s, limit_bytes
        self._state = ("", "")
        self._failures = 0
        self._max_lines = sys.maxsize
        self._aside: tuple[int, str] = (0, "")
        self._aside_due_s = 0.0
        self._trim_due_s = 0.0
        self._full = False
        self._ahead: LineBatch | None = None
        """What comes after the batch that is being sent."""
        self._deadline_s: float | None = None
        """When to end though there may be something left; None while an agent writes."""
        self._last_s = float("inf")

    def run(self) -> int:
        """Send until it is stopped; return 0 when nothing is left, 1 otherwise."""
        self._check_stop()
        while not self._over():
            try:
                self._trim()
                batch, self._ahead = self._ahead or self._cursor.next_batch(last=self._last), None
            except StoreError as error:
                self._wait(self._failed("waiting", error))
                continue
            if batch is not None:
                self._wait(self._send(batch))
            elif self._last:
                break
            else:
                self._wait(_POLL_S)
        self._tell_aside(last=True)
        unsent, path = self._unsent(), self._cursor.path
        if self._cursor.next_batch(last=self._last) is None:
            _say("drained", f"{self._client.settings} has all of {path}", unsent)
            return 0
        state, reason = self._state if self._state[0] in ("waiting", "refused") else ("waiting", "there was no time")
        left = f"{unsent} readings stay in {path}, and are sent by the next agent that writes it"
        _say(state, f"{reason}; {left}, or by: python -m energymon send --store {path}", unsent)
        return 1

    @property
    def _last(self) -> bool:
        """Whether no agent writes the store any more."""
        return self._stop.eof or not self._until_eof

    def _over(self) -> bool:
        """Whether to end though there may be something left."""
        given_up = self._failures > 0 and self._state[0] == "refused" and not self._until_eof
        late = self._deadline_s is not None and time.monotonic() >= self._deadline_s
        return self._stop.killed or given_up or late

    def _send(self, batch: LineBatch) -> float:
        """Send a batch; return how many seconds to wait before the next one."""
        try:
            at = 0
            while at < len(batch.lines):
                at += self._post(batch.lines[at : at + self._max_lines], batch)
            self._cursor.acknowledge(batch)
        except ServerUnavailable as error:
            return max(self._failed("waiting", error), error.retry_after_s)
        except StoreError as error:
            return self._failed("waiting", error)
        except WriteRejected as error:
            # The token's file may have a better one by now.
            with contextlib.suppress(OptionError):
                self._client.renew()
            return self._failed("refused", error)
        self._failures = 0
        self._enter("sending", str(self._client.settings))
        self._tell_aside()
        if self._deadline_s is not None:
            self._extend()
        return 0.0

    def _failed(self, state: str, error: EnergyError) -> float:
        self._ahead = None
        self._failures += 1
        self._enter(state, str(error))
        return backoff_s(self._failures)

    def _post(self, lines: list[str], batch: LineBatch) -> int:
        """Send lines of a batch, or set those aside that cannot be; return how many are done with."""
        try:
            self._deliver(lines, batch)
        except RequestTooLarge as error:
            if len(lines) > 1:
                self._max_lines = len(lines) // 2
                return 0
            self._set_aside(lines, str(error))
        except PartialWriteError as error:
            self._isolate(lines, error)
        return len(lines)

    def _deliver(self, lines: list[str], batch: LineBatch | None = None) -> None:
        """Post lines; the deadline ends the wait for the answer: lines that are sent again are the same points."""
        began_s = time.monotonic()
        answer: Future[None] = Future()
        answer.add_done_callback(lambda _: self._stop.wake())

        def post() -> None:
            try:
                self._client.post(lines)
            except BaseException as error:  # noqa: BLE001 - raised again below
                answer.set_exception(error)
            else:
                answer.set_result(None)

        threading.Thread(target=post, name="post", daemon=True).start()
        if batch is not None and self._ahead is None and self._failures == 0:
            # Made while the server works; what follows a batch that fails is read again.
            self._ahead = self._cursor.next_batch(last=self._last, after=batch)
        while not answer.done():
            # By hand a request has its own limit alone, INFLUXDB_V2_TIMEOUT.
            due_s = self._deadline_s if self._until_eof and self._deadline_s is not None else float("inf")
            self._stop.wait(min(_POLL_S, due_s - time.monotonic()))
            self._check_stop()
            if (self._stop.killed or time.monotonic() >= due_s) and not answer.done():
                waited_s = time.monotonic() - began_s
                raise ServerUnavailable(f"{self._client.settings.url} gave no answer within {waited_s:.1f} s")
        answer.result()

    def _isolate(self, lines: list[str], error: PartialWriteError) -> None:
        """Find the lines that the server does not take, by halves, and set them aside; the others are sent."""
        bad: list[tuple[list[str], str]] = []
        taken = False
        posts = 0
        suspects = [(lines, error)]
        while suspects:
            some, why = suspects.pop()
            spent = why.others_taken and posts >= _ISOLATING_POSTS
            if len(some) == 1 or why.dropped == len(some) or spent:
                bad.append((some, str(why)))
                continue
            middle = len(some) // 2
            for half in (some[middle:], some[:middle]):
                posts += 1
                try:
                    self._deliver(half)
                    taken = True
                except PartialWriteError as half_error:
                    suspects.append((half, half_error))
        if not taken:
            # Nothing of it was taken: are the lines bad, or is every request?
            try:
                self._deliver([_NO_POINTS])
            except PartialWriteError as every:
                message = f"{self._client.settings} takes no request at all: {every}; is it InfluxDB?"
                raise WriteRejected(message) from every
        for some, reason in bad:
            self._set_aside(some, reason)

    def _set_aside(self, lines: list[str], reason: str) -> None:
        self._cursor.set_aside(lines, reason)
        self._aside = (self._aside[0] + len(lines), reason)

    def _tell_aside(self, *, last: bool = False) -> None:
        count, reason = self._aside
        if count and (last or time.monotonic() >= self._aside_due_s):
            self._aside_due_s = time.monotonic() + _TELL_S
            self._aside = (0, "")
            message = (
                f"{self._client.settings} will not take {count} points, the last of them because: {reason}; they are "
                f"kept in the table `rejected` of {self._cursor.path}"
            )
            _say("set-aside", message, self._unsent())

    def _trim(self) -> None:
        """Delete what the server has where the store nears its limit; say once that there is little of that."""
        if self._limit_bytes is None or time.monotonic() < self._trim_due_s:
            return
        self._trim_due_s = time.monotonic() + _TRIM_S
        full = not self._cursor.trim(self._limit_bytes)
        if full and not self._full:
            message = (
                f"{self._cursor.path} has reached its limit of {self._limit_bytes / 1e6:.0f} MB and holds little that "
                f"was sent; bring {self._client.settings} back, or raise --spool-limit-mb"
            )
            _say("refused", message, self._unsent())
        self._full = full

    def _enter(self, state: str, message: str) -> None:
        """Report a change of state, once; the last one is reported at the end, with what to do."""
        if (state, message) != self._state:
            self._state = (state, message)
            if self._over():
                return
            unsent = self._unsent()
            kept = f"; {unsent} readings are kept in {self._cursor.path} and sent later" if state != "sending" else ""
            _say(state, message + kept, unsent)

    def _wait(self, delay_s: float) -> None:
        """Wait, not beyond the deadline, and hear what there is to hear even when there is nothing to wait for."""
        until_s = time.monotonic() + delay_s
        if self._deadline_s is not None:
            until_s = min(until_s, self._deadline_s)
        while True:
            eof = self._stop.eof
            left_s = until_s - time.monotonic()
            self._stop.wait(left_s)
            self._check_stop()
            if left_s <= 0 or self._stop.killed or self._stop.eof != eof:
                return

    def _check_stop(self) -> None:
        """Set the time to end by once the agent has ended, or from the start where there is none."""
        if self._deadline_s is None and self._last:
            if self._until_eof:
                self._last_s = time.monotonic() + self._drain_s
            self._extend()

    def _extend(self) -> None:
        """Go on for a while: nobody waits for long on a server that is away, and unsent readings stay in the store."""
        patience_s = _PATIENCE_S if self._until_eof else self._drain_s
        self._deadline_s = min(self._last_s, time.monotonic() + patience_s)

    def _unsent(self) -> int | None:
        """Return how many readings are unsent, or None when the store does not answer."""
        try:
            return self._cursor.unsent()
        except StoreError:
            return None


def _open(store: Path, stop: StopListener) -> StoreCursor:
    """Open the store; an agent's sender waits for the one of the agent before it, which may still be draining."""
    is_reported = False
    while True:
        try:
            return StoreCursor(store)
        except BusyError as error:
            if not stop.until_eof or stop.eof or stop.killed:
                raise
            if not is_reported:
                _say("waiting", str(error), None)
                is_reported = True
        stop.wait(_POLL_S)


def _say(state: str, message: str, unsent: int | None) -> None:
    line = json.dumps({"state": state, "message": message, "unsent": unsent}) + "\n"
    # The agent may be gone. Nothing may be left in a buffer, which would be written, and fail, at the end.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line.encode())
