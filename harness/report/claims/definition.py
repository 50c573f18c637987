"""One claim of a paper as a value; docs/claims.md describes what each part means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from harness.config.validation import Section
from harness.report.claims.bound import Bound, Style

Side = Literal["both", "of", "over"]
Accelerator = Literal["real", "computed", "published", "scaled", "emulated", "any"]
"""Which steps a claim allows.

real: a GPU computes them | computed: a GPU or the CPU does | published: a GPU does, or an emulated step lasts as long
as published for samples of this size | scaled: as published, or that length times a factor | emulated: there is a
step, of whatever kind | any: also without any step.
"""


class Needs(Section):
    """Conditions on a run for a claim to be judged on it."""

    accelerator: Accelerator = "any"
    model_check: bool = False
    """Whether the claim is of a model check: rows of replayed times and emulated steps, on which no other is judged."""
    board: str = ""
    """Part of the name of the GPU's board: A100."""
    devices: int = Field(default=1, ge=1)
    """Least number of real accelerators of a cell's ranks; where a board is named, their number."""
    samples: int = Field(default=1, ge=1)
    """Least number of samples of an epoch."""
    listed: int = Field(default=0, ge=0)
    """Least number of paths of the list that a loader's samples carry: `loaders.KEY.listed`, or an epoch's samples."""
    sample_kb: list[float] = Field(default=[], min_length=2, max_length=2, description="a least and a greatest size")
    """Least and greatest mean size of an epoch's samples, in kB; without, any."""
    epoch_s: float = Field(default=0.0, ge=0)
    """Least median duration of an epoch, of the quickest loader, setting and regime that are compared."""
    rate_gbit: float = Field(default=0.0, ge=0)
    """Least rate of the links that are compared: with less, the link decides and no loader does."""
    settled: int = Field(default=1, ge=1)
    """Least number of settled epochs of a cell."""
    repeats: int = Field(default=1, ge=1)
    """Least number of repeats."""
    reordered: float = Field(default=0.0, ge=0, le=1)
    """Least share of batches with other samples than PyTorch's same batch, in the median of the epochs."""


@dataclass(frozen=True, slots=True)
class Values:
    """Which values of a key a claim runs over: these, those between two of them, or where neither is given all."""

    key: str
    listed: tuple[object, ...] = ()
    between: tuple[float, float] | None = None
    """Both ends have to be there."""
    side: Side = "both"
    """Which of `of` and `over` the key selects rows of."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One claim of a paper."""

    id: str
    figure: str
    """Of the experiment that asks for it, by its name in the experiment's `figures`."""
    claim: str
    """In a sentence."""
    source: str
    """Paper and section."""
    metric: str
    of: Mapping[str, object]
    """Which rows, by column or config key."""
    bound: Bound
    over: Mapping[str, object] | None = None
    """The rows by whose median that of the others is divided."""
    each: tuple[Values, ...] = ()
    """Evaluated for every value of a key by itself; of several keys for every combination."""
    combine: str = ""
    """What becomes of the values then."""
    style: Style = "number"
    needs: Needs = field(default_factory=Needs)
    settled: bool = True
    """Judged on settled epochs alone: a cell's first one starts workers and fills caches."""
    peak: bool = False
    """Of a loader in several settings, that with the greatest median."""
    because: str = ""
    """The measured cause of a difference, which is reported where the claim fails; empty where it is unknown."""
    conflict: str = ""
    """Where the paper contradicts itself."""
