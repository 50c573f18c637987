"""The hosts of an inventory, taken by one controller: no other one changes them meanwhile."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from harness.errors import TestbedError
from harness.testbed.hosts.inventory import Inventory
from harness.testbed.hosts.playbook import PlaybookProgress
from harness.testbed.hosts.preflight import find_obstacles, unreachable
from harness.testbed.hosts.session import HostSession, sessions_with
from joulefeed.calls import CallError
from joulefeed.child import ChildError

_BEAT_S: Final = 10.0
"""A claim ends a minute after the last beat, where the end of its connection is not seen."""


@contextmanager
def hosts_claimed(
    inventory: Inventory, purpose: str, progress: PlaybookProgress, *, must_reach: bool = True
) -> Iterator[None]:
    """Take all hosts, and look at what must be right before anything is changed; nothing is changed by that.

    Args:
        inventory: the hosts.
        purpose: what they are taken for, which another controller says when it is refused.
        progress: shows the look.
        must_reach: whether all must be reachable and right; default: True. Otherwise those are taken that can be.

    Raises:
        TestbedError: a host is taken by another controller, or is not reachable or right; the message names it.
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
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(reached, over), name="claims", daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()


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


def _beat(sessions: Sequence[HostSession], over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        for session in sessions:
            # What needs a host says that it is lost.
            with suppress(CallError, ChildError, OSError):
                if session.is_connected:
                    session.ask("clock", _BEAT_S)
