"""`joulefeed COMMAND`: one name for the commands of all packages, each of which is a `python -m` as well."""

from __future__ import annotations

import runpy
import sys
from typing import Final

from joulefeed.version import remedy, version_text

COMMANDS: Final = {
    "run": ("harness", "measure an experiment: joulefeed run +experiment=wan30ms"),
    "resume": ("harness", "measure what is missing of a run: joulefeed resume [FOLDER]"),
    "watch": ("harness.run.watch", "what a run does now, from another terminal or as a page: joulefeed watch [FOLDER]"),
    "report": ("harness.report", "draw a run's tables, figures and page again"),
    "compare": ("harness.compare", "is one run slower than another?"),
    "advise": ("harness.advise", "which loader and which settings, for a workload or a script of yours"),
    "diagnose": ("harness.diagnose", "which stage of loading starves the accelerator"),
    "papers": ("harness.papers", "every figure and table of the papers, and what reproduces here"),
    "validate": ("harness.validate", "judge a run again from its raw files"),
    "doctor": ("energymon doctor --seconds 1", "what of this machine's energy can be measured"),
    "energy": ("energymon", "joules of a command, a window or a machine: joulefeed energy exec -- CMD"),
    "testbed": ("harness.testbed", "links between nodes: doctor, up, down, clean"),
    "new": ("joulefeed.new", "write a loader, dataset, workload, figure or experiment of your own to begin with"),
    "serve": ("loaders.streaming serve", "serve a dataset to streaming loaders"),
}


def main() -> int:
    """Run the command that the first argument names; returns the exit status where none is run."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(version_text())
    elif name in ("--help", "-h"):
        lines = [f"  {each:<10}{what}" for each, (_, what) in COMMANDS.items()]
        print("joulefeed: what it takes, in seconds and joules, to feed an accelerator\n\n  joulefeed COMMAND\n")
        print(*lines, f"\nbash completes commands by: complete -W '{' '.join(COMMANDS)}' joulefeed", sep="\n")
    elif name not in COMMANDS:
        print(f"error: {name}: no such command; expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    else:
        module, *first = COMMANDS[name][0].split()
        if name == "resume":
            rest = [word if "=" in word or word.startswith("-") else f"resume={word}" for word in rest or ["latest"]]
        sys.argv[1:] = [*first, *rest]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except ModuleNotFoundError as error:
            if not (how := remedy(error)):
                raise
            print(f"error: joulefeed {name}: {error}{how}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
