"""Removes the processes, control group, mounts, namespaces and files of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from harness.errors import TestbedError
from harness.system.process import REAPER_VARIABLE, kill_all
from harness.testbed.link.namespace import run_in
from harness.testbed.link.shaper import RECORD, restore
from harness.testbed.memory import remove_memory_groups
from harness.testbed.mounts.nfs import stop_nfs_server
from harness.testbed.mounts.table import detach, mounts_below
from harness.testbed.state import RunNames, abandoned_runs


def clean() -> list[str]:
    """Remove what dead runs have left on this machine; living runs are not touched.

    Returns:
        One line for each thing that was removed.

    Raises TestbedError when something could not be removed; the message names it. Its record is kept for the next time.
    """
    removed: list[str] = []
    problems: list[str] = []
    for state in abandoned_runs():
        try:
            removed += [f"run {state.names.run_id}: {what}" for what in tear_down(state.names)]
            state.forget()
            # A stopped reaper would never end.
            reapers = kill_all(state.names.run_id, variable=REAPER_VARIABLE)
            removed += [f"run {state.names.run_id}: reaper {pid}" for pid in reapers]
        except (TestbedError, TimeoutError) as error:
            problems.append(str(error))
            state.release()
    if problems:
        raise TestbedError("; ".join(problems))
    return removed


def tear_down(names: RunNames) -> list[str]:
    """Remove everything of one run but its record; parts that do not exist are skipped.

    Returns:
        One line for each thing that was removed.

    Raises TestbedError when something could not be removed; the rest was.
    """
    removed: list[str] = []
    problems: list[str] = []

    def attempt(what: str, remove: Callable[[], Iterable[object]]) -> bool:
        try:
            removed.extend(f"{what} {one}" for one in remove())
        except (TestbedError, TimeoutError) as error:
            problems.append(str(error))
            return False
        return True

    attempt("process", lambda: kill_all(names.run_id, names.namespace_paths))
    # One that stays is known by its record in the folder alone.
    forgets = attempt("control group", lambda: remove_memory_groups(names.folder))
    forgets &= attempt("queueing disciplines of", lambda: filter(None, [restore(names.folder / RECORD)]))
    for mount in reversed(mounts_below(names.folder)):
        try:
            detach(mount)
            removed.append(f"mount {mount}")
        except OSError as error:
            problems.append(f"mount {mount}: {error.strerror}")
    for path in names.namespace_paths:
        if path.exists():
            attempt("namespace", partial(_delete_namespace, path))
    # Never through a mount that is still there: what lies behind it is the user's data.
    if names.folder.exists() and forgets and not mounts_below(names.folder):
        shutil.rmtree(names.folder)
        removed.append(f"folder {names.folder}")
    if problems:
        raise TestbedError(f"run {names.run_id} could not be removed whole: {'; '.join(problems)}")
    return removed


def _delete_namespace(path: Path) -> list[str]:
    stop_nfs_server(path)
    run_in(None, ["ip", "netns", "delete", path.name])
    return [path.name]
