"""`python -m harness.cell`: one cell, as the harness starts it on a node."""

import sys

from harness.system.ending import run_to_end


def _program() -> int:
    from harness.cell.main import main

    return main(sys.argv[1:])


run_to_end(_program)
