"""The daemon of a loader that is streamed to, on the node that holds the data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import CellError
from harness.talk import first_line
from harness.testbed.base import Node
from harness.testbed.process import end_group

__all__ = ["Daemon", "serving"]

_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that is ready."""

    endpoint: str
    process: subprocess.Popen[bytes]

    def failure(self) -> str | None:
        """Say how the daemon ended, or None while it lives."""
        status = self.process.poll()
        return None if status is None else f"the daemon at {self.endpoint} is gone (status {status})"


@contextmanager
def serving(node: Node, host: str, shards: Path, params: Mapping[str, Any], log: Path) -> Iterator[Daemon]:
    """Run a daemon over `shards` on `node`, listening on `host` alone; it is ended when the context is left."""
    options = dict(params)
    module, port = options.pop("module"), options.pop("port", 0)
    argv = [sys.executable, "-m", module, "serve", "--until-eof"]
    argv += ["--root", str(shards), "--listen", f"{host}:{port}"]
    for key, value in options.items():
        argv += [f"--{key.replace('_', '-')}", str(value)]
    with log.open("ab") as file:
        process = node.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
    try:
        line = first_line(process, _READY_S)
        try:
            endpoint = json.loads(line)["endpoint"]
        except (ValueError, KeyError) as error:
            said = log.read_text(errors="replace").strip().splitlines()
            raise CellError(f"the daemon did not start: {said[-1] if said else 'it said nothing'}") from error
        yield Daemon(endpoint, process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        end_group(process)
        if process.stdout is not None:
            process.stdout.close()
