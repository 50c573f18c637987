"""The daemon of a loader that is streamed to, on a node that holds data: its options, its keys, its life."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from energymon.system.child import Child, ChildError
from harness.config.keys import unknown_key
from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.errors import CellError, ConfigError, TestbedError
from harness.testbed.base import Node

__all__ = ["Daemon", "Keys", "check_daemon", "daemon_flags", "make_keys", "serving"]

_READY_S = 30.0
_GIVEN = {"--root", "--listen", "--until-eof", "--keys", "--no-auth", "--events", "--bandwidth-gbit", "--rtt-ms"}
"""Flags that the harness sets; the config may not."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run: what the daemon's hosts get, and what the client gets."""

    daemon: Path
    client: Path


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that is ready."""

    endpoint: str
    child: Child

    def failure(self) -> str | None:
        """Say how the daemon ended, or None while it lives."""
        return None if self.child.is_alive else f"the daemon at {self.endpoint} is gone: it {self.child.describe_end()}"


@cache
def daemon_flags(module: str) -> frozenset[str]:
    """Return the flags that `python -m MODULE serve --help` lists; raises ConfigError when it cannot be asked."""
    done = _command(module, "serve", "--help")
    if done.returncode:
        raise ConfigError(f"daemon.module={module}: `python -m {module} serve --help` says: {_last_line(done.stderr)}")
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", done.stdout))


def check_daemon(loader: LoaderSpec) -> None:
    """Raise ConfigError for a key that a loader's daemon does not take, and for keys that it cannot keep safe with."""
    where = f"loaders.{loader.key}.daemon"
    module = loader.daemon.get("module")
    if not isinstance(module, str):
        raise ConfigError(
            f"{where}.module={module!r}: expected the module that serves a loader that reads a stream, "
            "for one loaders.streaming"
        )
    known = daemon_flags(module)
    for key in loader.daemon:
        if key in ("module", "port"):
            continue
        if _flag(key) in _GIVEN:
            raise ConfigError(f"{where}.{key}: is given by the harness")
        if _flag(key) not in known:
            takes = {"port", *(flag[2:].replace("-", "_") for flag in known - _GIVEN - {"--help"})}
            raise unknown_key(f"{where}.{key}", takes, f"{module} takes no such key", "it takes")
    encrypt = loader.daemon.get("encrypt")
    if encrypt is not None and encrypt != loader.secure:
        raise ConfigError(
            f"{where}.encrypt={encrypt}: secure alone decides now: loaders.{loader.key}.secure=true encrypts and "
            "authenticates the whole stream, false nothing of it; leave encrypt out"
        )
    port = loader.daemon.get("port", 0)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535:
        raise ConfigError(f"{where}.port={port!r}: expected 0 to 65535, 0 for any free one")
    if loader.secure and "--keys" not in known:
        raise ConfigError(f"loaders.{loader.key}.secure=true: {module} takes no --keys; set it to false")


def make_keys(module: str, folder: Path) -> Keys:
    """Make a run's keys in `folder`, which only this user may look into; raises TestbedError when that fails."""
    done = _command(module, "keygen", str(folder))
    if done.returncode:
        raise TestbedError(f"python -m {module} keygen: {_last_line(done.stderr)}")
    return Keys(folder / "daemon", folder / "client")


@contextmanager
def serving(
    node: Node,
    host: str,
    shards: Path,
    params: Mapping[str, Any],
    log: Path,
    *,
    keys: Keys | None = None,
    events: Path | None = None,
    regime: Regime | None = None,
) -> Iterator[Daemon]:
    """Run a daemon over `shards` on `node`, listening on `host` alone; it is ended when the context is left.

    With `keys` only the run's own client is served. `events` is the file of its timestamps, where it writes one.
    `regime` is the link to its clients, where there is one, for a daemon that sizes its buffers by it.
    """
    given = _arguments(host, shards, params, keys=keys, events=events, regime=regime)
    argv = [sys.executable, "-m", params["module"], *given]
    with node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as child:
        try:
            endpoint = str(child.ready(_READY_S)["endpoint"])
        except ChildError as error:
            raise CellError(f"the daemon on the {node.role} node did not start: it {error}") from error
        yield Daemon(endpoint, child)


def _arguments(
    host: str,
    shards: Path,
    params: Mapping[str, Any],
    *,
    keys: Keys | None = None,
    events: Path | None = None,
    regime: Regime | None = None,
) -> Sequence[str]:
    options = dict(params)
    module, port = options.pop("module"), options.pop("port", 0)
    known = daemon_flags(module)
    arguments = ["serve", "--until-eof", "--root", str(shards), "--listen", f"{host}:{port}"]
    if keys is not None:
        arguments += ["--keys", str(keys.daemon)]
    elif "--no-auth" in known and not ip_address(host).is_loopback:
        arguments += ["--no-auth"]
    if events is not None and "--events" in known:
        arguments += ["--events", str(events)]
    if regime is not None and regime.rate_gbit is not None and {"--bandwidth-gbit", "--rtt-ms"} <= known:
        arguments += ["--bandwidth-gbit", f"{regime.rate_gbit:g}", "--rtt-ms", f"{regime.rtt_ms:g}"]
    for key, value in options.items():
        if isinstance(value, bool):
            arguments += [_flag(key)] if value else []
        elif value is not None:
            arguments += [_flag(key), str(value)]
    return arguments


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _command(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a daemon's module on this host, its standard input at its end."""
    argv = [sys.executable, "-m", module, *arguments]
    try:
        return subprocess.run(argv, input="", capture_output=True, text=True, timeout=_READY_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"daemon.module={module}: no end of `{' '.join(argv[1:])}` in {_READY_S:g} s") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
