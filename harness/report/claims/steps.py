"""Whether the step of an epoch is of the kind that a claim needs (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.report.claims.definition import Accelerator
from harness.report.claims.rows import ClaimRow

_CPU: Final = "the CPU computes the steps"
_EMULATED: Final = "the accelerator is emulated"
_ASSUMED: Final = "the step's length is assumed"
_OTHER_SIZE: Final = "the step is published for samples of another size"
_SCALED: Final = "the step's length is the published one times a factor"

_REFUSED: Final[Mapping[Accelerator, tuple[str, ...]]] = {
    "real": (_CPU, _EMULATED),
    "computed": (_EMULATED,),
    "published": (_CPU, _ASSUMED, _OTHER_SIZE, _SCALED),
    "scaled": (_CPU, _ASSUMED, _OTHER_SIZE),
    "emulated": (),
}
_OF_STAGES: Final = {"auto": "cuda", "cuda": "cuda", "cpu": "cpu"}
"""What takes the batches of a stage that trains nothing, by the config's kind: `auto` would have emulated a step."""


def find_unmet(wanted: Accelerator, row: ClaimRow) -> list[str]:
    """Return why the step of a row is not of the kind that a claim wants; empty where it is."""
    if wanted == "any":
        return []
    label = row.accelerator
    if label.startswith("none"):
        label = _OF_STAGES.get(str(row.labels.get("accelerator.kind")), label)
    if not label or label.startswith("none"):
        return ["there is no accelerator" if label else "the accelerator is not known"]
    known = _describe(label)
    return [reason for reason in _REFUSED[wanted] if reason in known]


def _describe(label: str) -> tuple[str, ...]:
    """Return what a label (harness.workloads.emulated, harness.workloads.training) says of a step; of a GPU nothing."""
    if label == "cpu":
        return (_CPU,)
    if not label.startswith("emulated"):
        return ()
    of, _, scale = label.removeprefix("emulated: ").partition(",")
    assumed = of == "idle" or of.startswith("assumed")
    said = {_ASSUMED: assumed, _OTHER_SIZE: " at " in of, _SCALED: bool(scale) and not assumed}
    return (_EMULATED, *(reason for reason, holds in said.items() if holds))
