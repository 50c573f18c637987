"""The run on the lead of several hosts: `python -m harness.run.hosts.lead`, which the controller starts.

It reads an Assignment, a line of JSON. It writes lines of JSON: calls of the controller's Progress, the results folder
and its plan as soon as they exist, and at the end how many cells failed, or the error that ended the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

from omegaconf import DictConfig, OmegaConf

from harness.config.specs import Experiment
from harness.errors import CellError, HarnessError
from harness.results.cells import Cell
from harness.results.folder import RunFolder
from harness.run.driver import Cluster, measure
from harness.run.host_energy import TOKEN_VARIABLE
from harness.run.progress import Progress
from harness.system.disk import check_writable, disk_errors
from harness.testbed.inventory import Inventory
from joulefeed.signals import Interrupted, signals_raise

HOSTS_DATA: Final = Path("/var/lib/joulefeed/data")
"""Datasets and shards on every host; storage hosts export it."""
HOSTS_RESULTS: Final = Path("/var/lib/joulefeed/results")
"""Results folders on the lead, until they are fetched."""
CALLS: Final = frozenset(
    {"doing", "note", "follow", "start", "cell_started", "phase", "samples", "cell_done", "cell_failed", "stop"}
)
"""What the lead calls of the controller's Progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A run that this host leads."""

    run_id: str
    config: str
    """The composed config, as YAML."""
    inventory: str
    """As `Inventory.to_json` writes it."""
    command: str
    """What the user typed."""
    ssh_config: str
    """How the other hosts are reached from here."""
    token: str | None = None
    """Of the time-series server."""

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self)) + "\n"


class _Relayed:
    """A Progress whose calls are lines for the controller."""

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)
        return lambda *arguments: _say({"call": name, "arguments": [_plain(one) for one in arguments]})


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def replay(progress: Progress, name: str, arguments: list[Any]) -> None:
    """Make a call of the lead's on the controller's own Progress."""
    if name == "start":
        arguments[0] = [Cell(**one) for one in arguments[0]]
    elif name.startswith("cell_"):
        arguments[0] = Cell(**arguments[0])
    if name in CALLS:
        getattr(progress, name)(*arguments)


def main() -> int:
    """Run what standard input asks for; returns the exit status."""
    assignment = Assignment(**json.loads(sys.stdin.readline()))
    if assignment.token:
        os.environ[TOKEN_VARIABLE] = assignment.token
    try:
        with signals_raise():
            cfg = OmegaConf.create(assignment.config)
            assert isinstance(cfg, DictConfig)
            where = {"results_dir": Path(cfg.results_dir), "cache_dir": Path(cfg.cache_dir)}
            for key, folder in where.items():
                check_writable(key, folder)
            experiment = Experiment.from_config(cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True)))
            # The token came with the assignment: its file is on the controller.
            store = experiment.store.model_copy(update={"token_file": None})
            experiment = experiment.model_copy(update={"store": store})
            inventory = Inventory.from_json(assignment.inventory)
            cluster = Cluster(inventory, assignment.run_id, Path(assignment.ssh_config))
            with disk_errors(where):
                progress = cast(Progress, _Relayed())
                _, failed = measure(experiment, cfg, progress, assignment.command, _say_folder, cluster)
    except (HarnessError, Interrupted) as error:
        kind = CellError if isinstance(error, Interrupted) else type(error)
        _say({"error": str(error), "kind": kind.__name__, "status": error.exit_status})
        return error.exit_status
    _say({"failed": failed})
    return 0


def _say_folder(path: Path) -> None:
    _say({"folder": str(path), "plan": RunFolder(path).plan.read_text()})


def _say(message: Mapping[str, object]) -> None:
    # Without a controller the run ends by its lease.
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
