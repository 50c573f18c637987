"""Looks after testbeds: what this machine can do, what dead runs have left, and the hosts of a cluster."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

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
    commands.add_parser("clean", help="remove the processes, mounts, namespaces and files of dead runs")
    for name, does in _PLAYBOOK_HELP.items():
        command = commands.add_parser(name, help=does, description=does)
        command.add_argument("--inventory", required=True, metavar="FILE", help="Ansible's inventory, or slurm:")
        if name == "collect":
            command.add_argument("folder", nargs="?", default="results", help="where results go (results)")
        elif name != "status":
            command.add_argument("--check", action="store_true", help="only say what would change")
    options = parser.parse_args(arguments)
    try:
        if options.command in _PLAYBOOK_HELP:
            return _play(options)
        return _doctor(options.inventory) if options.command == "doctor" else _clean()
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
    from harness.testbed.hosts.inventory import Inventory
    from harness.testbed.hosts.playbook import run_playbook
    from harness.testbed.hosts.preflight import hosts_claimed

    inventory = Inventory.load(options.inventory)
    name = {"up": "site.yml", "status": "status.yml", "down": "teardown.yml"}.get(options.command, "")
    try:
        with ExitStack() as stack:
            progress = stack.enter_context(RunProgress(Console(stderr=True)))
            if options.command == "collect":
                from harness.run.hosts.bring_home import collect_hosts

                print("\n".join(map(str, collect_hosts(inventory, Path(options.folder), progress))))
                return 0
            if options.command != "status":
                is_up = options.command == "up"
                stack.enter_context(hosts_claimed(inventory, options.command, progress, must_reach=is_up))
            check = getattr(options, "check", False)
            result = run_playbook(name, inventory, progress, check=check)
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


def _doctor(inventory: str | None) -> int:
    """Look at the hosts of an inventory, and return 1 where a run cannot work; without one, look at this machine."""
    from harness.testbed.doctor import examine_machine, show

    if inventory is not None:
        from rich.console import Console

        from harness.run.progress import RunProgress
        from harness.testbed.hosts.inventory import Inventory
        from harness.testbed.hosts.preflight import examine_hosts

        hosts = Inventory.load(inventory)
        with RunProgress(Console(stderr=True)) as progress:
            found = examine_hosts(hosts, progress)
        print(show(found))
        return int(any(finding.verdict == "fail" for finding in found))
    for finding in examine_machine():
        print(f"{'yes' if finding.verdict == 'ok' else 'no ':3}  {finding.what:30}  {finding.found}", flush=True)
    return 0


def _clean() -> int:
    from harness.testbed.clean import clean

    removed = clean()
    print("\n".join(f"removed {what}" for what in removed) or "nothing to remove: no dead run has left anything")
    return 0


if __name__ == "__main__":
    run_program(main)
