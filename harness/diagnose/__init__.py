"""Which stage starves the accelerator, and what to change: `python -m harness.diagnose`."""

from harness.diagnose.diagnosis import Diagnosis, read_diagnosis
from harness.diagnose.verdict import Verdict, judge

__all__ = ["Diagnosis", "Verdict", "judge", "read_diagnosis"]
