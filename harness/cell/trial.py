"""Makes the loader of a cell once, as for its warm-up: `python -m harness.cell.trial`, in the loader's environment.

It reads a CellSpec, a line of JSON, and writes `{"refused": null}`, or the message of what refuses to be made.
"""

from __future__ import annotations

import json
import os
import sys

from harness.cell.main import make_loader
from harness.cell.messages import CellSpec
from harness.config.targets import instantiate
from harness.errors import HarnessError
from harness.workloads import Workload
from loaders.errors import LoaderError


def try_loader(spec: CellSpec, workload: Workload) -> str | None:
    """Make and close a loader; return why it cannot be made, None where it can. Raises HarnessError."""
    try:
        with make_loader(spec, workload, "cpu", warmup=True):
            return None
    except HarnessError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a loader may be the user's; what it raises is the refusal
        return f"{'' if isinstance(error, LoaderError) else f'{type(error).__name__}: '}{error}"


def main() -> int:
    """Try the loader that standard input describes; returns the exit status."""
    # What libraries print must not mix with the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = CellSpec.from_json(sys.stdin.readline())
    try:
        refused = try_loader(spec, instantiate(spec.workload.target, spec.workload.params))
    except HarnessError as error:
        refused = str(error)
    answer.write(json.dumps({"refused": refused}) + "\n")
    answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
