"""The agent of this process: windows share it, and it is started when the first one asks for it."""

from __future__ import annotations

import atexit
import os
import threading

from energymon.agent.process import AgentProcess

_lock = threading.Lock()
_shared: AgentProcess | None = None
_dead: list[AgentProcess] = []
"""Agents of this process that were found dead: their windows can still be read."""


def shared_agent() -> AgentProcess:
    """Return the agent of this process, which is started when it is first asked for and again when it has died.

    Raises:
        NoSensorError: There is nothing to sample.
        AgentError: It does not start for another reason.
    """
    global _shared  # noqa: PLW0603 - one a process is the point
    with _lock:
        if _shared is None or not _shared.alive:
            fresh = AgentProcess()
            fresh.start()
            if _shared is None:
                atexit.register(_stop_shared)
            else:
                _shared.end()
                _dead.append(_shared)
            _shared = fresh
        return _shared


def _stop_shared() -> None:
    """At exit, after which nobody reads a window."""
    if _shared is not None:
        _shared.remove()
    while _dead:
        _dead.pop().remove()


def _after_fork() -> None:
    """In the child: the agent is the parent's, and the thread that held the lock is not here."""
    global _lock, _shared  # noqa: PLW0603
    _lock = threading.Lock()
    if _shared is not None:
        atexit.unregister(_stop_shared)
    _shared = None
    _dead.clear()


os.register_at_fork(after_in_child=_after_fork)
