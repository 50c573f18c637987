"""What a host answers before anything is installed on it: its clock, who has it, and how far another host is.

`harness.testbed.hosts.session` sends this text over SSH to the host's Python 3.8 or later, which needs no package. It
answers as `joulefeed.calls` expects. It ends at the end of its input, or ten minutes after the last line. Where it has
claimed the host for a controller it ends a minute after the last line, and removes what Ansible's modules left in /tmp
since.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
from typing import Any

TIMEOUT_S = 5.0
LIFE_S = 600
CLAIM_S = 60
CLAIM = "\0joulefeed-testbed"
"""Name of the socket that one process of a host can have: it needs no file and no rights, and ends with the process."""
ORPHAN_S = 5
"""How long a claim lasts when its controller is gone: Ansible is ended meanwhile."""
HANDSHAKES = 20
kept: list[socket.socket] = []
"""Sockets that live as long as this process."""


def claim(who: str) -> str:
    """Take this host until this process ends, and show others `who` has it; where another has it, return who."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(CLAIM)
    except OSError:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(TIMEOUT_S)
            try:
                asking.connect(CLAIM)
                return asking.recv(1000).decode(errors="replace")
            except OSError:
                return "another process, which does not answer"
    holder.listen(8)

    def answer_who() -> None:
        while True:
            connection, _ = holder.accept()
            with contextlib.suppress(OSError):
                connection.sendall(who.encode())
            connection.close()

    threading.Thread(target=answer_who, daemon=True).start()
    return ""


def listen(address: str) -> int:
    """Listen on an address, at a port of the kernel's choice, which is returned; the kernel answers by itself."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    kept.append(listener)
    listener.bind((address, 0))
    listener.listen(HANDSHAKES)
    return int(listener.getsockname()[1])


def reach(address: str, host: str, port: int) -> float:
    """Return the median round trip, ms, of TCP handshakes from an address of this host to a port of another one."""
    times = []
    for _ in range(HANDSHAKES):
        begin = time.perf_counter()
        socket.create_connection((host, port), TIMEOUT_S, (address, 0)).close()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def ansible_folders() -> set[pathlib.Path]:
    """Return the folders of this user's that Ansible copies modules to; it removes them itself unless it is killed."""
    found = set()
    for folder in pathlib.Path("/tmp").glob("ansible-tmp-*"):  # noqa: S108 - remote_tmp of ansible.cfg
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                found.add(folder)
    return found


def say(value: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer calls until there are no more."""
    handlers: dict[str, Any] = {"clock": time.time_ns, "claim": claim, "listen": listen, "reach": reach}
    life_s, is_claimed, is_left, before = LIFE_S, False, False, ansible_folders()
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    signal.alarm(life_s)
    say({"ready": True})
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            do = asked.pop("do")
            if do == "leave":
                is_left = True
                break
            try:
                answer = handlers[do](**asked)
                if do == "claim" and not answer:
                    life_s, is_claimed = CLAIM_S, True
                say({"answer": answer})
            except OSError as error:
                say({"error": str(error.strerror or error), "kind": "OSError"})
            signal.alarm(life_s)
    finally:
        signal.alarm(0)
        if is_claimed:
            time.sleep(0 if is_left else ORPHAN_S)
            for folder in ansible_folders() - before:
                shutil.rmtree(str(folder), ignore_errors=True)


if __name__ == "__main__":
    main()
