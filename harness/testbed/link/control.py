"""The control socket of a link that another process owns: a connection sends one JSON object and gets one back.

    {"do": "set", "regime": {"name": "wan30ms", "rtt_ms": 30, "rate_gbit": 1}}   fields of Regime -> {"ok": true}
        with "recalibrate": true the link is calibrated again
    {"do": "counters"}                                                       -> fields of LinkCounters
    {"do": "describe"}                                                       -> what `Link.describe` returns

A refused command gets {"error": "..."}. Each object is one line.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link.base import Link, LinkCounters
from harness.testbed.link.userspace.paths import PathCounters

Answer = Callable[[dict[str, Any]], dict[str, object]]
"""Takes a command and returns its answer."""
ANSWER_TIMEOUT_S: Final = 60.0
"""A link that is set to a far regime is measured up to three times."""
REQUEST_TIMEOUT_S: Final = 2.0
MAX_LINE_BYTES: Final = 1 << 20


def set_regime(path: Path, regime: Regime, *, recalibrate: bool = False) -> None:
    """Set the link behind a control socket to a regime, calibrated again where that is asked for.

    Raises:
        TestbedError: nothing answers there, or the link refuses.
    """
    ask(path, {"do": "set", "regime": regime.model_dump(), "recalibrate": recalibrate})


def read_counters(path: Path) -> LinkCounters:
    """Read the counters of the link behind a control socket.

    Raises:
        TestbedError: nothing answers there, or the link is broken.
    """
    found = ask(path, {"do": "counters"})
    return LinkCounters(**{**found, "paths": tuple(PathCounters(**one) for one in found["paths"])})


def ask(path: Path, command: Mapping[str, object], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """Send one command to a control socket and return its answer.

    Raises:
        TestbedError: nothing answers there, or the answer is an error.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(json.dumps(command).encode() + b"\n")
            answer: dict[str, Any] = json.loads(_read_line(connection))
    except (OSError, ValueError) as error:
        raise TestbedError(f"control socket {path}: {error}; expected the process that owns it to answer") from error
    if "error" in answer:
        raise TestbedError(str(answer["error"]))
    return answer


def link_commands(link: Link) -> Answer:
    """Return what answers the commands of a link's control socket."""

    def answer(command: dict[str, Any]) -> dict[str, object]:
        if command["do"] == "set":
            link.set(Regime.model_validate(command["regime"]), recalibrate=command.get("recalibrate") is True)
            return {"ok": True}
        if command["do"] == "counters":
            return asdict(link.counters())
        if command["do"] == "describe":
            return link.describe()
        raise TestbedError(f"unknown command {command['do']!r}; expected set, counters or describe")

    return answer


def serve(answers: Mapping[Path, Answer], stop_fd: int, on_listening: Callable[[], None] = lambda: None) -> None:
    """Answer commands, one after the other, until the end of `stop_fd`.

    Args:
        answers: what answers on which socket; the sockets are made, and only this user may connect.
        stop_fd: a descriptor whose end ends the service; what it contains is ignored.
        on_listening: called when all sockets can be connected to; does nothing by default.

    Raises:
        TestbedError: a socket cannot be made.
    """
    listeners: dict[socket.socket, Answer] = {}
    try:
        for path, answer in answers.items():
            listeners[_listen(path)] = answer
        on_listening()
        while True:
            ready, _, _ = select.select([stop_fd, *(each.fileno() for each in listeners)], (), ())
            if stop_fd in ready and not os.read(stop_fd, 4096):
                return
            for listener, answer in listeners.items():
                if listener.fileno() in ready:
                    _answer_one(listener, answer)
    finally:
        for listener in listeners:
            listener.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise TestbedError(f"control socket {path}: {error.strerror or error}; expected a free path") from error
    finally:
        os.umask(mask)
    return listener


def _answer_one(listener: socket.socket, answer: Answer) -> None:
    connection, _ = listener.accept()
    with connection:
        # A client that is silent must not keep the others waiting for long.
        connection.settimeout(REQUEST_TIMEOUT_S)
        try:
            line = _read_line(connection)
        except (OSError, ValueError):
            return
        answered: dict[str, object]
        try:
            answered = answer(json.loads(line))
        except TestbedError as error:
            answered = {"error": str(error)}
        except ValidationError as error:
            problem = error.errors()[0]
            answered = {"error": f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"}
        except (ValueError, KeyError, TypeError) as error:
            answered = {"error": f"{line[:200]!r}: {error!r}; expected a command as one JSON object"}
        try:
            connection.sendall(json.dumps(answered).encode() + b"\n")
        except OSError:
            return


def _read_line(connection: socket.socket) -> bytes:
    """Return a line without its end; raises ValueError where the connection ends before it, or it is too long."""
    line = b""
    while not line.endswith(b"\n"):
        if not (chunk := connection.recv(65536)):
            raise ValueError("the connection ended before the end of a line")
        line += chunk
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line has more than {MAX_LINE_BYTES} bytes")
    return line.rstrip(b"\n")
