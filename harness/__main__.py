"""`python -m harness`."""

from harness.signals import run_program


def _program() -> int:
    from harness.cli import main

    return main()


run_program(_program, "nothing was measured yet")
