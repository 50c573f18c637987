"""`python -m harness.diagnose`."""

from harness.diagnose.cli import main
from harness.system.program import run_program

run_program(main)
