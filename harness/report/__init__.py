"""Tables, figures, claims and report.html, all from a results folder and nothing else."""

from __future__ import annotations

from harness.report.render import Rendered, Report, check_figures, read_report, render
from harness.report.tables import print_jobs, print_report

__all__ = ["Rendered", "Report", "check_figures", "print_jobs", "print_report", "read_report", "render"]
