"""`python -m harness.cell`: one cell, as the harness starts it on a node."""

from harness.system.program import run_to_end


def _program() -> int:
    from harness.cell.main import main

    return main()


run_to_end(_program)
