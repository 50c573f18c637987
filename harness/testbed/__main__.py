"""`python -m harness.testbed doctor` tells what this machine can do; `clean` removes what dead runs have left."""

from __future__ import annotations

import argparse
import sys

from harness.errors import TestbedError
from harness.system.signals import run_program


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what this machine can do for a testbed, and the remedies")
    commands.add_parser("clean", help="remove the processes, mounts, namespaces and files of dead runs")
    try:
        return _doctor() if parser.parse_args(arguments).command == "doctor" else _clean()
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _doctor() -> int:
    from harness.testbed.doctor import examine

    for finding in examine():
        print(f"{'yes' if finding.there else 'no ':3}  {finding.ability:30}  {finding.remark}", flush=True)
    return 0


def _clean() -> int:
    from harness.testbed.clean import clean

    removed = clean()
    print("\n".join(f"removed {what}" for what in removed) or "nothing to remove: no dead run has left anything")
    return 0


if __name__ == "__main__":
    run_program(main, "nothing was removed")
