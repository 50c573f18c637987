"""`python -m harness`."""

from harness.system.signals import run_program


def _program() -> int:
    from harness.run.cli import main

    return main()


run_program(_program, "nothing was measured yet")
