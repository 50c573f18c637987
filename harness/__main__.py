"""`python -m harness`."""

from harness.cli import main
from harness.system.program import run_program

run_program(main)
