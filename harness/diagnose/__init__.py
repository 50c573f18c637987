"""Which stage starves the accelerator, and what to change: `python -m harness.diagnose`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from harness.diagnose.diagnosis import Diagnosis, read_diagnosis
    from harness.diagnose.verdict import Verdict, judge

__all__ = ["Diagnosis", "Verdict", "judge", "read_diagnosis"]

# Imported when asked for: the command has to hear of signals before anything that takes a while.
_MODULES: Final = {"Diagnosis": "diagnosis", "read_diagnosis": "diagnosis", "Verdict": "verdict", "judge": "verdict"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
