"""Models that are trained, and the accelerators that train them."""

from harness.workloads.accelerator import Step, choose_kind, make_step
from harness.workloads.base import Workload

__all__ = ["Step", "Workload", "choose_kind", "make_step"]
