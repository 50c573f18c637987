"""Runs an experiment on the hosts of an inventory: sets them up, starts the run on the lead, brings its folder home."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf

from harness import errors
from harness.config.specs import Experiment
from harness.errors import HarnessError, TestbedError
from harness.results.files import write_whole
from harness.results.folder import RunFolder, move_home
from harness.run.driver import check, hosts_of_run
from harness.run.host_energy import read_token
from harness.run.hosts.lead import FOLDER, HOSTS_DATA, HOSTS_RESULTS, show
from harness.run.progress import RunProgress
from harness.testbed.hosts.connection import LOST, RemoteNode, beating, reach
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG, Inventory
from harness.testbed.hosts.preflight import hosts_claimed
from harness.testbed.hosts.supervisor import BEAT, SILENCE_S, STOP, RemoteCommand
from joulefeed.calls import CallError, request, wait_answer
from joulefeed.child import Child, ChildError
from joulefeed.signals import signals_held

_BEAT_S: Final = 2.0
_END_S: Final = 60.0
"""What the lead may take to end a run that is interrupted."""
_SILENCE_S: Final = 3600.0
"""How long the lead may say nothing outside cells, for example while it opens a large dataset."""
_MAX_SILENCE_S: Final = 1e6
T = TypeVar("T")


def run_on_hosts(
    experiment: Experiment,
    cfg: DictConfig,
    progress: RunProgress,
    command: str,
    on_folder: Callable[[Path], None],
    report_on: Callable[[Path, int], T],
) -> T:
    """Run (or resume) an experiment on several hosts, as `harness.run.driver.measure` does on one machine.

    Returns what `report_on` makes of the results folder and the number of failed cells, as soon as they are home: they
    have their report even where the hosts cannot be taken back. Raises HarnessError when the run cannot start or go on.
    A failed cell does not raise; the others are run.
    """
    check(experiment, cfg)
    assert experiment.testbed.inventory is not None
    inventory = Inventory.load(experiment.testbed.inventory)
    if idle := hosts_of_run(experiment, inventory).idle:
        progress.note(f"hosts without a part in this run: {', '.join(host.name for host in idle)}")
    results_dir = Path(cfg.results_dir)
    with ExitStack() as stack:
        resumed = None
        if cfg.resume is not None:
            resumed = RunFolder.find(str(cfg.resume), results_dir)
            stack.enter_context(resumed.hold_lock())
        lead = _Lead(inventory, experiment, cfg, command, resumed)
        stack.enter_context(hosts_claimed(inventory, f"a run of {experiment.name}", progress))
        stack.enter_context(_set_up(inventory, progress, lambda: experiment.testbed.keep or lead.has_results))
        stack.enter_context(lead)
        try:
            failed = lead.follow(progress, on_folder)
        except BaseException:
            with signals_held():
                lead.stop()
                # The error in flight is the one to report; what cannot be fetched stays on the lead.
                with suppress(HarnessError, OSError):
                    if (folder := lead.bring_home(results_dir, progress)) is not None:
                        on_folder(folder)
            raise
        folder = lead.bring_home(results_dir, progress)
        assert folder is not None
        on_folder(folder)
        return report_on(folder, failed)


@contextmanager
def _set_up(inventory: Inventory, progress: RunProgress, is_kept: Callable[[], bool]) -> Iterator[None]:
    """Set the hosts up by site.yml, and take that back by teardown.yml at the end unless it is kept."""
    from harness.testbed.hosts.playbook import run_playbook

    try:
        run_playbook("site.yml", inventory, progress)
        yield
    except BaseException:
        down = f"python -m harness.testbed down --inventory {inventory.source} takes them back"
        if is_kept():
            progress.note(f"the hosts stay as they are; {down}")
        else:
            # The error in flight is the one to report, and its status the program's.
            with signals_held():
                try:
                    run_playbook("teardown.yml", inventory, progress)
                except (HarnessError, OSError) as error:
                    progress.note(f"the hosts are not as they were: {error}; {down}")
        raise
    if not is_kept():
        with signals_held():
            run_playbook("teardown.yml", inventory, progress)


class _Lead:
    """The run on the lead, and the connection over which it goes on."""

    def __init__(
        self, inventory: Inventory, experiment: Experiment, cfg: DictConfig, command: str, resumed: RunFolder | None
    ) -> None:
        self._inventory, self._experiment, self._cfg, self._command = inventory, experiment, cfg, command
        self._resumed = resumed
        self._run_id = uuid4().hex[:8]
        self._child: Child | None = None
        self._heartbeats = ExitStack()
        self._folder: Path | None = None

    def __enter__(self) -> _Lead:
        host = self._inventory.lead
        self._connection = reach(host)
        self._node = RemoteNode(
            "compute", self._run_id, host=host.name, connection=self._connection, there=HOSTS_RESULTS
        )
        if self._resumed is not None:
            self._send(self._resumed.folder)
        order = RemoteCommand(
            run_id=self._run_id,
            argv=("-m", "harness.run.hosts.lead"),
            is_python=True,
            text=self._request(),
            silence_s=SILENCE_S,
        )
        self._child = self._connection.start(order, keep_stderr=True)
        self._heartbeats.enter_context(beating(self._beat, _BEAT_S))
        return self

    def __exit__(self, *of: object) -> None:
        self._heartbeats.close()
        if self._child is not None:
            self._child.stop(eof_s=_END_S)

    @property
    def has_results(self) -> bool:
        """Whether the lead has results that are not at home; teardown.yml would remove them."""
        return self._folder is not None

    def follow(self, progress: RunProgress, on_folder: Callable[[Path], None]) -> int:
        """Show what the lead does until it ends; returns how many cells failed.

        The run can be resumed as soon as it has a folder, even where this process is killed.

        Raises HarnessError as the run on the lead does, TestbedError when the lead is lost.
        """
        assert self._child is not None

        def hear(name: str, *arguments: str) -> None:
            if name == FOLDER:
                on_folder(self._open_home(*arguments))
            else:
                show(progress, name, *arguments)

        silence_s = min(_MAX_SILENCE_S, _SILENCE_S + 60 * self._experiment.cell_stall_min)
        try:
            return int(wait_answer(self._child, "measure", timeout_s=silence_s, progress=hear))
        except (ChildError, CallError) as error:
            if isinstance(error, CallError) and error.kind:
                raise getattr(errors, error.kind, TestbedError)(str(error)) from error
            words = self._child.stderr_lines(1)
            is_lost = not words and self._child.process.poll() == LOST
            words = f" is lost: its connection {error}" if is_lost else f", the lead: {words or error}"
            collect = f"python -m harness.testbed collect --inventory {self._inventory.source} brings it home"
            where = f"; what it measured stays in {self._folder} on it; {collect}" if self._folder else ""
            raise TestbedError(f"host {self._inventory.lead.name}{words}{where}") from error

    def _open_home(self, folder: str, plan: str) -> Path:
        """Make a folder here that can be resumed; the lead's own comes at the end."""
        self._folder = Path(folder)
        home = RunFolder(Path(self._cfg.results_dir) / self._folder.name)
        if not home.plan.exists():
            home.cells.mkdir(parents=True)
            write_whole(home.config, self._config())
            write_whole(home.plan, plan.encode())
            home.point_latest()
        return home.folder

    def stop(self) -> None:
        """Have the lead end the run in order; what it says is not shown any more."""
        assert self._child is not None
        with suppress(ChildError):
            self._child.send(STOP)

        def hear(name: str, *arguments: str) -> None:
            if name == FOLDER:
                self._folder = Path(arguments[0])

        # What a stuck lead does not end in time, its lease ends.
        with suppress(ChildError, CallError):
            wait_answer(self._child, "measure", timeout_s=_END_S, progress=hear)

    def bring_home(self, results_dir: Path, progress: RunProgress) -> Path | None:
        """Fetch the run's folder, and remove it on the lead; returns where it is, None where there is none.

        Raises HarnessError when it cannot be fetched; it stays on the lead then.
        """
        if self._folder is None:
            return None
        progress.doing(f"fetching the results from host {self._inventory.lead.name}")
        results_dir.mkdir(parents=True, exist_ok=True)
        home = results_dir / self._folder.name
        fresh = results_dir / f".{self._folder.name}.{uuid4().hex[:8]}.partial"
        fresh.mkdir()
        try:
            self._node.fetch(self._folder, fresh)
            write_whole(fresh / "config.yaml", self._config())
            move_home(fresh, home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        folder, self._folder = self._folder, None
        self._node.run(["rm", "-rf", "--", str(folder)])
        if obstacle := RunFolder(home).point_latest():
            progress.note(obstacle)
        return home

    def _send(self, folder: Path) -> None:
        """Give the lead the folder of a run, unless it has more of that run: what a controller that died left there."""
        there, fresh = HOSTS_RESULTS / folder.name, HOSTS_RESULTS / f".{folder.name}"
        if not self._node.run(["sh", "-c", 'ls -d "$0" 2>/dev/null || true', str(there)]):
            self._node.send(folder, fresh)
            self._node.run(["mv", "-T", "--", str(fresh), str(there)])
        self._folder = there

    def _config(self) -> bytes:
        return OmegaConf.to_yaml(self._cfg, resolve=True).encode()

    def _request(self) -> str:
        cfg = OmegaConf.merge(self._cfg, {"results_dir": str(HOSTS_RESULTS), "cache_dir": str(HOSTS_DATA)})
        if self._resumed is not None:
            cfg.resume = self._resumed.folder.name
        line = request(
            "measure",
            run_id=self._run_id,
            config=OmegaConf.to_yaml(cfg, resolve=True),
            inventory=self._inventory.to_json(),
            command=self._command,
            ssh_config=str(LEAD_SSH_CONFIG),
            token=read_token(self._experiment.store),
        )
        return line.decode()

    def _beat(self) -> None:
        with suppress(ChildError, OSError):
            if self._child is not None:
                self._child.send(BEAT)
