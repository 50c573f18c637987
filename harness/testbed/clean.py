"""Removes the processes, control group, mounts, namespaces and files of a run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from harness.errors import TestbedError
from harness.system.process import REAPER_VARIABLE, kill_all
from harness.testbed.link.shaper import RECORD, restore
from harness.testbed.memory import remove_memory_groups
from harness.testbed.mounts.nfs import stop_nfs_server
from harness.testbed.mounts.table import detach, mounts_below
from harness.testbed.state import RunNames, abandoned_runs


def clean() -> list[str]:
    """Remove what dead runs have left on this machine; living runs are not touched.

    Returns:
        One line for each thing that was removed.

    Raises:
        TestbedError: something could not be removed; the message names it. Its record is kept for the next time.
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

    Raises:
        TestbedError: something could not be removed; the rest was.
    """
    removed: list[str] = []
    problems: list[str] = []
    try:
        removed += [f"process {pid}" for pid in kill_all(names.run_id, names.namespace_paths)]
    except TimeoutError as error:
        problems.append(str(error))
    needs_record = False
    try:
        removed += [f"control group {group}" for group in remove_memory_groups(names.folder)]
    except TestbedError as error:
        needs_record = True
        problems.append(str(error))
    try:
        shaped = restore(names.folder / RECORD)
        removed += [f"queueing disciplines of {shaped}"] if shaped else []
    except TestbedError as error:
        needs_record = True
        problems.append(str(error))
    for mount in reversed(mounts_below(names.folder)):
        try:
            detach(mount)
            removed.append(f"mount {mount}")
        except OSError as error:
            problems.append(f"mount {mount}: {error.strerror}")
    for path in names.namespace_paths:
        if path.exists():
            problem = stop_nfs_server(path) or _delete_namespace(path)
            removed += [] if problem else [f"namespace {path.name}"]
            problems += [problem] if problem else []
    # Never through a mount that is still there: what lies behind it is the user's data. A control group or a queueing
    # discipline that is left is known by its record in the folder alone.
    if names.folder.exists() and not needs_record and not mounts_below(names.folder):
        shutil.rmtree(names.folder)
        removed.append(f"folder {names.folder}")
    if problems:
        raise TestbedError(f"run {names.run_id} could not be removed whole: {'; '.join(problems)}")
    return removed


def _delete_namespace(path: Path) -> str | None:
    done = subprocess.run(["ip", "netns", "delete", path.name], capture_output=True, text=True, check=False)
    return f"namespace {path.name}: {done.stderr.strip()}" if done.returncode else None
