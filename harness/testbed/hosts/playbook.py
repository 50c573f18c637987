"""Runs a playbook of this project on the hosts of an inventory, through ansible-runner.

A playbook has the life of a run on the controller: when the controller is killed, a reaper ends Ansible, its workers
and SSH connections, and removes its files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

from harness.errors import DiskError, TestbedError
from harness.system.process import RUN_VARIABLE
from harness.testbed.hosts.inventory import PLAYBOOKS, Inventory, ansible_environment, ansible_program
from harness.testbed.lifetime import Lifetime
from joulefeed.signals import Interrupted, signals_noted
from joulefeed.version import remedy

JOB_TIMEOUT_S: Final = 3600
"""Most of it is for the environment of 6 GB on a slow line."""
IDLE_TIMEOUT_S: Final = 1200
"""A task says nothing until it ends."""
_MAX_REASON: Final = 300
_NO_ANSWER: Final = ("MODULE FAILURE", "Module result deserialization failed")
"""What Ansible says of a module that ended without a result."""
_MAX_LOGS: Final = 20
_POLL_S: Final = 0.5
"""How often time and signals are looked at while a task says nothing."""
_ASSERT: Final = "ansible.builtin.assert"
_FAILURES: Final = frozenset({"runner_on_failed", "runner_on_unreachable", "runner_item_on_failed"})


class PlaybookProgress(Protocol):
    """What shows how far a playbook is."""

    def follow(self, what: str, done: int, total: int | None = None, detail: str = "") -> None:
        """Take note of how many tasks are done, and of the present host and task."""

    def note(self, text: str) -> None:
        """Print a line that stays."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """What a playbook asserts of a host."""

    host: str
    task: str
    holds: bool
    words: tuple[str, ...]
    """The message's parts, or why it could not be asserted."""


@dataclass(frozen=True, slots=True)
class PlaybookResult:
    """How a playbook ended that failed nowhere."""

    changed: Mapping[str, int]
    """Number of tasks that changed something, by host."""
    log: Path
    """Ansible's own output."""
    answers: Mapping[str, Mapping[str, str]]
    """Standard output of each host's commands, by host and task."""
    assertions: tuple[Assertion, ...] = ()


def run_playbook(
    name: str,
    inventory: Inventory,
    progress: PlaybookProgress,
    *,
    variables: Mapping[str, object] | None = None,
    limit: str = "",
    tags: str = "",
    check: bool = False,
    job_timeout_s: int = JOB_TIMEOUT_S,
) -> PlaybookResult:
    """Run a playbook of playbooks/ to its end, with `variables` that go before the inventory's and are no secrets.

    `progress` shows each host's tasks; what changes or fails has a line that stays. `limit` names the hosts or groups
    that it runs on, and `tags` the tags of its tasks, separated by commas; all by default. With `check` it only says
    what it would change. SIGINT, SIGTERM and SIGHUP end Ansible and its connections; a task may still run to its end on
    a host.

    Raises TestbedError when a task fails, a host is unreachable, or it takes longer than `job_timeout_s`; the message
    names host, task, reason and log. Raises Interrupted when a signal comes, DiskError when the log cannot be written.
    """
    ansible_program("ansible-playbook")
    log = _new_log(Path(name).stem)
    follower = _Follower(name, progress)
    run_id = uuid4().hex[:8]
    with closing(Lifetime(run_id)) as lifetime, signals_noted() as signals:
        # Its import takes a while, and a testbed on one machine needs none of it.
        try:
            import ansible_runner
        except ModuleNotFoundError as error:
            raise TestbedError(f"{name}: {error}{remedy(error)}") from None
        folder = lifetime.names.folder
        hosts = Path(inventory.source)
        if inventory.text is not None:
            hosts = folder / "hosts.yml"
            hosts.write_text(inventory.text)
        # From a file: ansible-runner drops the settings that it is given where it may not write them to one.
        settings = {"job_timeout": job_timeout_s, "idle_timeout": IDLE_TIMEOUT_S, "pexpect_timeout": _POLL_S}
        (folder / "env").mkdir()
        (folder / "env" / "settings").write_text(json.dumps(settings))
        ansible = {
            **ansible_environment(),
            RUN_VARIABLE: run_id,
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
        }
        lifetime.wait_guarded()
        runner = ansible_runner.run(
            private_data_dir=str(folder),
            project_dir=str(PLAYBOOKS),
            playbook=name,
            inventory=str(hosts),
            extravars=dict(variables or {}),
            envvars=ansible,
            limit=limit or None,
            tags=tags or None,
            cmdline="--check" if check else None,
            quiet=True,
            suppress_env_files=True,
            event_handler=follower.take,
            cancel_callback=lambda: signals.number is not None,
        )
        status, stats = runner.status, runner.stats or {}
        log.write_text(runner.stdout.read() if Path(runner.stdout.name).exists() else "")
        if signals.number is not None:
            raise Interrupted(signals.number)
    if status == "timeout":
        raise TestbedError(
            f"{name} ran for more than {job_timeout_s} s, or was silent for {IDLE_TIMEOUT_S} s, and was ended "
            f"in {follower.present or 'its start'}; log: {log}"
        )
    if follower.failures or status != "successful":
        first = follower.failures[0] if follower.failures else _last_words(log)
        others = len(follower.failures) - 1
        more = f" (and {others} more)" if others > 0 else ""
        raise TestbedError(f"{name}: {first}{more}; log: {log}")
    return PlaybookResult(dict(stats.get("changed", {})), log, follower.answers, tuple(follower.assertions))


def _new_log(stem: str) -> Path:
    """Return the file for a playbook's output, and remove the oldest such files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "joulefeed" / "ansible"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{folder}: {error.strerror}; the logs of playbooks are kept there") from error
    for old in sorted(folder.glob("*.log"), key=lambda path: path.name.partition("-")[2])[:-_MAX_LOGS]:
        old.unlink(missing_ok=True)
    log = folder / f"{stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"
    log.touch(0o600)
    return log


@dataclass(slots=True)
class _Follower:
    """Takes ansible-runner's events."""

    name: str
    progress: PlaybookProgress
    failures: list[str] = field(default_factory=list)
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    assertions: list[Assertion] = field(default_factory=list)
    present: str = ""
    done: int = 0

    def take(self, event: Mapping[str, Any]) -> bool:
        """Show one event; returns whether ansible-runner keeps it, which its statistics need."""
        kind, data = str(event.get("event", "")), event.get("event_data", {})
        host, task, result = data.get("host"), _task(data), data.get("res", {})
        if kind in ("runner_on_ok", "runner_on_failed") and data.get("task_action") == _ASSERT:
            self._note_assertions(str(host), task, result, has_failed=kind == "runner_on_failed")
        if kind == "runner_on_start":
            self.present = f"{host}: {task}"
            self.progress.follow(self.name, self.done, detail=self.present)
        elif kind in _FAILURES and not data.get("ignore_errors"):
            # A loop has an event for each item that fails, and one for the task.
            line = f"{host}: {task}: {_reason(result)}"
            if kind != "runner_item_on_failed":
                self.failures.append(line)
                self.progress.note(f"{self.name}: {line}")
        elif kind == "runner_on_ok":
            self.done += 1
            if result.get("changed"):
                self.progress.note(f"{self.name}: {host}: {task}: changed")
            if isinstance(result.get("stdout"), str):
                self.answers.setdefault(str(host), {})[str(data.get("task"))] = result["stdout"]
        return True

    def _note_assertions(self, host: str, task: str, result: Mapping[str, Any], *, has_failed: bool) -> None:
        for one in result.get("results", [{**result, "failed": has_failed}]):
            words, holds = one.get("msg"), not one.get("failed")
            if isinstance(words, list):
                self.assertions.append(Assertion(host, task, holds, tuple(map(str, words))))
            elif not holds:
                self.assertions.append(Assertion(host, task, holds, (_reason(one),)))


def _task(data: Mapping[str, Any]) -> str:
    role, task = data.get("role"), str(data.get("task", ""))
    return f"{role}: {task}" if role else task


def _reason(result: Mapping[str, Any]) -> str:
    """Return the line of a task's result that says why it failed."""
    if "censored" in result:
        return "the reason is hidden because it may hold a secret"
    failed = [item for item in result.get("results", ()) if item.get("failed")]
    # Where facts cannot be gathered, each module has a result of its own.
    failed = failed or list(result.get("failed_modules", {}).values())
    if failed:
        result = failed[0]
    words = str(result.get("msg") or "")
    if words in {"", "non-zero return code"} or words.startswith(_NO_ANSWER):
        words = str(result.get("stderr") or result.get("module_stderr") or result.get("stdout") or words)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    text = "; ".join(lines[-3:]) or "no reason given"
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("ERROR", "[ERROR]"))]
    return (telling or lines[-1:] or ["Ansible ended without a word"])[0]
