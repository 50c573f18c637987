"""What is wrong with a real tree: told, or left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.errors import DatasetError

__all__ = ["check_faults"]


def check_faults(root: Path, faults: Mapping[str, str], *, kept: int, noun: str, on_error: str) -> None:
    """Raise DatasetError naming the first fault, unless they are to be skipped and samples are left.

    `faults` says by a sample's path what is wrong with it, `kept` how many have no fault, `noun` what they are called.
    """
    if not faults or (kept and on_error == "skip"):
        return
    (where, reason), *others = faults.items()
    more = f", and {len(others)} more of {kept + len(faults)} {noun} are at fault" if others else ""
    remedy = "mend what is at fault, or leave it out with dataset.on_error=skip"
    raise DatasetError(
        f"dataset.root={root}: {where} {reason}{more}; {remedy if on_error == 'raise' else 'no sample is left'}"
    )
