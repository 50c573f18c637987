"""The daemon of a loader that is streamed to, on a node that holds data: its options, its keys, its life."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

from pydantic import BaseModel, Field

from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.config.validation import NumberAboveZero, Section, parse, unknown_key
from harness.errors import CellError, ConfigError, TestbedError
from harness.run.prepare import daemon_environment, module_of, python_of
from harness.testbed.base import Node
from harness.testbed.hosts.connection import RemoteNode
from joulefeed.child import Child, ChildError
from loaders.errors import LoaderError
from loaders.shared.daemon.flags import flags

_START_S: Final = 180.0
"""A busy or an emulated machine starts Java or Python that slowly."""
_MARGIN_S: Final = 15.0
"""A daemon that has the limit as well names the cause, unless Python alone takes so long."""
_LOG_LINES: Final = 200
_RESTARTED: Final = '"event": "restarted"'
"""In the log of a daemon that is two processes (loaders.streaming)."""
_GIVEN: Final = frozenset({"root", "listen", "until_eof", "keys", "no_auth", "events", "bandwidth_gbit", "rtt_ms"})
"""Options that the harness sets; the config may not."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run: what the daemon's hosts get, and what the client gets."""

    daemon: Path
    client: Path


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that is ready."""

    endpoint: str
    child: Child

    def failure(self) -> str | None:
        """Say how the daemon ended, or that it has started its server again; None where neither has happened."""
        if not self.child.is_alive:
            return f"the daemon at {self.endpoint} is gone: it {self.child.describe_end()}"
        again = [line for line in self.child.stderr_lines(_LOG_LINES).splitlines() if _RESTARTED in line]
        return f"the daemon at {self.endpoint} has started its server again: {again[0]}" if again else None


class _HostOptions(Section):
    """Where a daemon listens on its host, how much memory it has there, and how long its start may take."""

    port: Annotated[int, Field(ge=0, le=65_535, description="0 to 65535, 0 for any free one")] = 0
    memory_mb: NumberAboveZero | None = None
    start_s: NumberAboveZero = _START_S


def _options(module: str) -> type[BaseModel]:
    """Return the model of what a daemon's module takes; raises ConfigError when it has none."""
    found: type[BaseModel] | None = getattr(module_of(module), "DaemonOptions", None)
    if found is None:
        raise ConfigError(
            f"daemon.module={module}: expected a module with DaemonOptions, the pydantic model of the options of "
            f"`python -m {module} serve`"
        )
    return found


def check_daemon(loader: LoaderSpec) -> None:
    """Raise ConfigError for a key or value that a loader's daemon does not take, and for keys without a use."""
    where, module = f"loaders.{loader.key}.daemon", loader.daemon.get("module")
    if not isinstance(module, str):
        raise ConfigError(
            f"{where}.module={module!r}: expected the module that serves a loader that reads a stream, "
            "such as loaders.streaming"
        )
    known, own = _options(module).model_fields, _HostOptions.model_fields
    for key in loader.daemon.keys() - {"module"}:
        if key in _GIVEN:
            raise ConfigError(f"{where}.{key}: is given by the harness")
        if key not in {*known, *own}:
            raise unknown_key(f"{where}.{key}", {*known, *own} - _GIVEN, f"{module} takes no such key", "it takes")
    if loader.secure and "keys" not in known:
        raise ConfigError(f"loaders.{loader.key}.secure=true: {module} takes no keys; set it to false")
    _arguments("127.0.0.1", Path(), loader.daemon, where=where)


def make_keys(module: str, folder: Path) -> Keys:
    """Make a run's keys in `folder`, which only this user may look into; raises TestbedError when that fails."""
    try:
        daemon, client = module_of(module).make_keys(folder)
    except (AttributeError, LoaderError) as error:
        raise TestbedError(f"the keys for {module}: {error}") from error
    return Keys(daemon, client)


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
) -> Iterator[RunningDaemon]:
    """Run a daemon over `shards` on `node`, listening on `host` alone; it is ended when the context is left.

    With `keys` only the run's own client is served. `events` is the file of its timestamps, where it writes one.
    `regime` is the link to its clients, where there is one, for a daemon that sizes its buffers by it.

    Raises CellError when the daemon does not start.
    """
    module = params["module"]
    with _files_on(node, keys, events) as (own_keys, own_events):
        given = _arguments(host, shards, params, keys=own_keys, events=own_events, regime=regime)
        argv = [python_of(daemon_environment(module)), "-m", module, *given]
        with node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as child:
            start_s = params.get("start_s", _START_S)
            knows = "start_s" in _options(module).model_fields
            try:
                endpoint = str(child.ready(start_s + _MARGIN_S if knows else start_s)["endpoint"])
            except ChildError as error:
                where = f"host {node.host}" if node.is_remote else f"the {node.role} node"
                late = "not ready within" in str(error)
                remedy = f"; daemon.start_s={start_s:g} is its limit: raise it" if late else ""
                raise CellError(f"the daemon on {where} did not start: it {error}{remedy}") from error
            yield RunningDaemon(endpoint, child)


@contextmanager
def _files_on(node: Node, keys: Keys | None, events: Path | None) -> Iterator[tuple[Keys | None, Path | None]]:
    """Bring a daemon's keys to another host, and its events back at the end."""
    if not isinstance(node, RemoteNode):
        yield keys, events
        return
    folder = node.folder / f"daemon-{uuid4().hex[:8]}"
    node.run(["mkdir", "-m", "700", str(folder), str(folder / "out")])
    if keys is not None:
        node.send(keys.daemon, folder / "keys")
        keys = replace(keys, daemon=folder / "keys")
    yield keys, None if events is None else folder / "out" / events.name
    if events is not None:
        node.fetch(folder / "out", events.parent)


def _arguments(
    host: str,
    shards: Path,
    params: Mapping[str, Any],
    *,
    keys: Keys | None = None,
    events: Path | None = None,
    regime: Regime | None = None,
    where: str = "daemon",
) -> list[str]:
    """Return the command line of a daemon: what its config sets, and what the harness gives it if it takes that.

    Raises ConfigError for a wrong value, whose key begins with `where`.
    """
    model = _options(params["module"])
    own = parse(_HostOptions, {key: value for key, value in params.items() if key in _HostOptions.model_fields}, where)
    options = {key: value for key, value in params.items() if key in model.model_fields and value is not None}
    given: dict[str, object] = {"root": shards, "listen": f"{host}:{own.port}", "until_eof": True, "events": events}
    given["start_s"] = own.start_s
    if keys is not None:
        given["keys"] = keys.daemon
    elif not ip_address(host).is_loopback:
        given["no_auth"] = True
    if regime is not None and regime.rate_gbit is not None:
        given |= {"bandwidth_gbit": regime.rate_gbit, "rtt_ms": regime.rtt_ms}
    known = {key: value for key, value in given.items() if key in model.model_fields}
    return ["serve", *flags(parse(model, {**options, **known}, where))]
