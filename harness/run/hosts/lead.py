"""The run on the lead of several hosts: `python -m harness.run.hosts.lead`, which the controller starts.

It answers one call, `measure`, by how many cells failed. Its progress is calls of the controller's display, and
`folder` with the results folder and its plan as soon as they exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from omegaconf import DictConfig, OmegaConf
from pydantic_core import to_jsonable_python

from harness.config.specs import Experiment
from harness.errors import CellError, HarnessError
from harness.results.cells import Cell
from harness.results.folder import RunFolder
from harness.run.driver import Cluster, measure
from harness.run.host_energy import TOKEN_VARIABLE
from harness.run.progress import RunProgress
from harness.system.disk import check_writable, disk_errors
from harness.testbed.hosts.inventory import Inventory
from joulefeed.calls import Answers
from joulefeed.signals import Interrupted, signals_raise

HOSTS_DATA: Final = Path("/var/lib/joulefeed/data")
"""Datasets and shards on every host; storage hosts export it."""
HOSTS_RESULTS: Final = Path("/var/lib/joulefeed/results")
"""Results folders on the lead, until they are fetched."""
FOLDER: Final = "folder"
_SHOWN: Final = frozenset(
    {
        "doing",
        "note",
        "follow",
        "start",
        "cell_started",
        "phase",
        "waits",
        "samples",
        "cell_done",
        "cell_failed",
        "stop",
    }
)
"""What the lead calls of the controller's display."""


class _RelayedDisplay:
    """A display whose calls are shown by the controller."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report

    def show_in(self, path: Path) -> None:
        """Write no file: the controller's display shows the run, and its folder is not there before the end."""

    def __getattr__(self, name: str) -> Any:
        if name not in _SHOWN:
            raise AttributeError(name)
        return lambda *arguments: self._report(name, *map(to_jsonable_python, arguments))


def _to_cells(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_cells(one) for one in value]
    return Cell(**value) if isinstance(value, dict) else value


def show(display: RunProgress, name: str, *arguments: object) -> None:
    """Make a call of the lead's on the controller's own display."""
    if name in _SHOWN:
        getattr(display, name)(*map(_to_cells, arguments))


def _measure(
    report: Callable[..., None],
    *,
    run_id: str,
    config: str,
    inventory: str,
    command: str,
    ssh_config: str,
    token: str | None,
) -> int:
    """Run what the controller asks for; returns how many cells failed.

    `report` reports progress to the controller. `config` is YAML, and `inventory` as `Inventory.to_json` writes it. The
    other hosts are reached by `ssh_config`. `token` is that of the time-series server.
    """
    if token:
        os.environ[TOKEN_VARIABLE] = token
    cfg = OmegaConf.create(config)
    assert isinstance(cfg, DictConfig)
    where = {"results_dir": Path(cfg.results_dir), "cache_dir": Path(cfg.cache_dir)}
    for key, folder in where.items():
        check_writable(key, folder)
    experiment = Experiment.from_config(cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True)))
    # The token came with the call: its file is on the controller.
    store = experiment.store.model_copy(update={"token_file": None})
    experiment = experiment.model_copy(update={"store": store})
    cluster = Cluster(Inventory.from_json(inventory), run_id, Path(ssh_config))

    def report_folder(path: Path) -> None:
        report(FOLDER, str(path), RunFolder(path).plan.read_text())

    try:
        with signals_raise(), disk_errors(where):
            display = cast(RunProgress, _RelayedDisplay(report))
            return measure(experiment, cfg, display, command, report_folder, cluster)[1]
    except Interrupted as error:
        raise CellError(str(error)) from error


def _write(line: str) -> None:
    # Without a controller the run ends by its lease.
    with suppress(BrokenPipeError):
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> int:
    """Answer the call on standard input; returns the exit status."""
    answers = Answers({"measure": lambda **given: _measure(answers.progress, **given)}, (HarnessError,), _write)
    answers.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
