"""`python -m harness`."""

from harness.signals import run_program


def _program() -> None:
    from harness.cli import main

    main()


run_program(_program, "nothing was measured yet")
