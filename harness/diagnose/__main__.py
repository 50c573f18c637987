"""`python -m harness.diagnose`."""

from harness.system.signals import run_program


def _program() -> int:
    from harness.diagnose.cli import main

    return main()


run_program(_program, "nothing was written")
