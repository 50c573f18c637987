"""Looks after testbeds: what this machine can do, what dead runs have left, and the hosts of a cluster."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from harness.errors import HarnessError
from harness.system.program import run_program
from joulefeed.signals import Interrupted


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="what this machine, or a cluster, can do for a testbed, and the remedies"
    )
    doctor.add_argument(
        "--inventory", metavar="FILE", help="look at the hosts of an inventory, Ansible's or slurm:, and change nothing"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("clean", help="remove the processes, mounts, namespaces and files of dead runs")
    for name, does in _PLAYBOOK_HELP.items():
        command = commands.add_parser(name, help=does, description=does)
        command.add_argument("--inventory", required=True, metavar="FILE", help="Ansible's inventory, or slurm:")
        command.add_argument("--limit", default="", metavar="HOSTS", help="hosts or groups, separated by commas")
        if name == "collect":
            command.add_argument("folder", nargs="?", default="results", help="where results go (results)")
        elif name != "status":
            command.add_argument("--check", action="store_true", help="only say what would change")
    options = parser.parse_args(arguments)
    try:
        if options.command in _PLAYBOOK_HELP:
            return _play(options)
        return _doctor(options.inventory, as_json=options.json) if options.command == "doctor" else _clean()
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


_PLAYBOOK_HELP = {
    "up": "make a testbed of the hosts of an inventory; a second time changes nothing",
    "status": "what up has made of the hosts, and which runs they have",
    "collect": "bring home results that are still on the lead, and logs of all hosts; before down, which removes them",
    "down": "leave the hosts as they were; works from the inventory alone",
}


def _play(options: argparse.Namespace) -> int:
    """Run the playbook of a command."""
    from rich.console import Console

    from harness.run.progress import RunProgress
    from harness.testbed.claim import hosts_claimed
    from harness.testbed.inventory import Inventory
    from harness.testbed.playbook import run_playbook

    inventory = Inventory.load(options.inventory)
    name = {"up": "site.yml", "status": "status.yml", "down": "teardown.yml"}.get(options.command, "")
    try:
        with ExitStack() as stack:
            progress = stack.enter_context(RunProgress(Console(stderr=True)))
            if options.command == "collect":
                from harness.run.hosts.bring_home import collect_hosts

                print("\n".join(map(str, collect_hosts(inventory, Path(options.folder), progress, options.limit))))
                return 0
            if options.command != "status":
                is_whole_up = options.command == "up" and not options.limit
                stack.enter_context(hosts_claimed(inventory, options.command, must_reach=is_whole_up))
            check = getattr(options, "check", False)
            result = run_playbook(name, inventory, progress, limit=options.limit, check=check)
    except Interrupted as error:
        if options.command in ("status", "collect"):
            raise
        undo = f"python -m harness.testbed down --inventory {options.inventory} undoes it"
        raise Interrupted(error.signum, undo) from error
    if options.command == "status":
        for host, answers in sorted(result.answers.items()):
            print("\n".join(f"{host}: {line}" for line in "".join(answers.values()).splitlines()))
        return 0
    changed = ", ".join(f"{host} {count}" for host, count in sorted(result.changed.items()) if count)
    would = "would change" if options.check else "changed"
    print(f"{options.command}: {would} {changed or 'nothing'}; log: {result.log}")
    return 0


def _doctor(inventory: str | None, *, as_json: bool) -> int:
    """Look at the hosts of an inventory, and return 1 where a run cannot work; without one, look at this machine."""
    from harness.testbed import preflight

    if inventory is not None:
        from harness.testbed.inventory import Inventory

        found = preflight.examine_hosts(Inventory.load(inventory))
        print(preflight.to_json(found) if as_json else preflight.show(found))
        return int(any(finding.verdict == "fail" for finding in found))
    if as_json:
        host = platform.node()
        rows = [preflight.Finding(host, one.ability, one.remark, "ok" if one.is_there else "warn") for one in examine()]
        print(preflight.to_json(rows))
        return 0
    for finding in examine():
        print(f"{'yes' if finding.is_there else 'no ':3}  {finding.ability:30}  {finding.remark}", flush=True)
    return 0


def _clean() -> int:
    from harness.testbed.clean import clean

    removed = clean()
    print("\n".join(f"removed {what}" for what in removed) or "nothing to remove: no dead run has left anything")
    return 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One ability of the machine."""

    ability: str
    is_there: bool
    remark: str
    """What it is good for where it is there; why it is missing and the remedy where it is not."""


def examine() -> Iterator[Finding]:
    """Try each ability in turn; nothing that is made for a trial outlives it."""
    from harness.testbed.caches import how_dropped
    from harness.testbed.memory import memory_obstacles
    from harness.testbed.netns import netns_obstacles
    from harness.testbed.nfs import nfs_obstacles
    from harness.testbed.sshfs import sshfs_obstacles
    from harness.testbed.unprivileged import namespace_obstacles, user_namespace_obstacles

    yield _found("testbed with a link", netns_obstacles(), "testbed.kind=netns can be opened")
    yield _found("network namespaces", namespace_obstacles(), "storage and compute get one each")
    yield _found("user namespaces", user_namespace_obstacles(), "the testbed runs without root")
    yield _device("link by netem", ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"], "sch_netem")
    yield _device("link by relay", ["ip", "tuntap", "add", "jf0", "mode", "tun"], "tun")
    tbf = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "1mb", "limit", "1mb"]
    yield _device("rate cap by tbf", tbf, "sch_tbf")
    yield _floor()
    yield _found("mount by NFSv4", nfs_obstacles(), "the papers' own kind of mount")
    yield _found("mount by sshfs", sshfs_obstacles(), "used where there is no NFS")
    dropping = (
        []
        if how_dropped() == "vm.drop_caches"
        else ["root of the machine alone may write vm.drop_caches; files are advised away"]
    )
    yield _found("cold caches by vm.drop_caches", dropping, "pages, directories and attributes are forgotten")
    yield _found("memory limit of a cell", memory_obstacles(), "testbed.memory_mb can be set")


def _floor() -> Finding:
    """Bring a link up and report its round trip without delay."""
    from harness.testbed.netns import NetnsTestbed

    ability = "round trip of the link itself"
    try:
        with NetnsTestbed(uuid4().hex[:8], "auto") as testbed:
            use = "regimes that are nearer get no delay, and are refused beyond checks.rtt_ms"
            return Finding(ability, True, f"{testbed.link.floor_ms:.2g} ms by {testbed.link.kind}: {use}")
    except HarnessError as error:
        return Finding(ability, False, str(error))


def _found(ability: str, obstacles: Sequence[str], use: str) -> Finding:
    return Finding(ability, not obstacles, "; ".join(obstacles) or use)


def _device(ability: str, trial: Sequence[str], module: str) -> Finding:
    """Try something in a network namespace that ends with the trial."""
    from harness.testbed.unprivileged import namespace_obstacles

    if obstacles := namespace_obstacles():
        return _found(ability, obstacles, "")
    try:
        done = subprocess.run(["unshare", "--net", "--", *trial], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return Finding(ability, False, "unshare is not installed: apt-get install util-linux")
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return Finding(ability, False, f"{reason[0]} (modprobe {module} where the kernel has it as a module)")
    return Finding(ability, True, "the kernel has it")


if __name__ == "__main__":
    run_program(main)
