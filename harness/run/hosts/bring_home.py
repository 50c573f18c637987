"""Brings home what runs have left on the hosts of an inventory, after a controller or a lead that died."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from omegaconf import OmegaConf

from harness.errors import TestbedError
from harness.results.files import write_whole
from harness.results.folder import RunFolder, make_folder, move_home
from harness.testbed.hosts.inventory import Inventory
from harness.testbed.hosts.playbook import PlaybookProgress, run_playbook

_DAYS: Final = 7
"""How old the entries of journals may be that are brought home."""


def collect_hosts(inventory: Inventory, results_dir: Path, progress: PlaybookProgress) -> list[Path]:
    """Copy each run on the lead into `results_dir`, with the logs, spools and provenance of each host in it.

    Nothing is removed on a host. Where the lead has no run, a new folder has what the hosts have. Returns the folders,
    the newest last.

    Raises TestbedError when a host cannot be reached or its files cannot be packed; files of the others are home.
    Raises ResultsError when a process has the folder of a run at home, Interrupted when a signal comes.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    failure = None
    with TemporaryDirectory(prefix=".collect-", dir=results_dir) as temporary:
        packed = Path(temporary)
        try:
            variables = {"collect_to": str(packed.absolute()), "collect_days": _DAYS}
            run_playbook("collect.yml", inventory, progress, variables=variables)
        except TestbedError as error:
            failure = error
        hosts = {}
        for archive in packed.glob("*.tar.gz"):
            hosts[archive.name.removesuffix(".tar.gz")] = packed / archive.name.removesuffix(".tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(packed / archive.name.removesuffix(".tar.gz"), filter="data")
        homes = _arrange(hosts, results_dir, progress)
    if failure is not None:
        raise TestbedError(f"{failure}; what came from other hosts: {', '.join(map(str, homes)) or 'nothing'}")
    return homes


def _arrange(hosts: Mapping[str, Path], results_dir: Path, progress: PlaybookProgress) -> list[Path]:
    """Move the runs to where the controller would have put them; returns their folders."""
    runs = sorted(plan.parent for host in hosts.values() for plan in host.glob("results/*/plan.json"))
    runs = [run for run in runs if not run.is_symlink()]
    homes = []
    for fresh in runs:
        home = results_dir / fresh.name
        config = RunFolder(fresh).read_config()
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        config.results_dir, config.cache_dir = str(results_dir), str(Path(cache) / "joulefeed")
        write_whole(fresh / "config.yaml", OmegaConf.to_yaml(config).encode())
        for host, folder in hosts.items():
            for part in (folder / "logs", folder / "spools" / fresh.name):
                if part.is_dir():
                    shutil.copytree(part, fresh / "hosts" / host, dirs_exist_ok=True)
        with RunFolder(home).hold_lock() if home.exists() else nullcontext():
            move_home(fresh, home)
        homes.append(home)
    if homes and (obstacle := RunFolder(homes[-1]).point_latest()):
        progress.note(obstacle)
    if not homes and hosts:
        homes.append(make_folder(results_dir, "hosts"))
        for host, folder in hosts.items():
            shutil.copytree(folder / "logs", homes[0] / "hosts" / host)
    return homes
