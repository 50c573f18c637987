"""Which claims a shipped experiment can judge, by its composed config alone.

    python -m tests.report.reach [small|full]

prints how many claims of each paper are judged on a machine without a GPU and without energy sensors, and why the
others are not. Whether epochs are as long as a claim needs, and whether batches are reordered, only a run shows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Final, Literal

from harness.config import list_packaged
from harness.config.specs import Experiment
from harness.config.targets import instantiate
from harness.report.claims import NOT_CHECKED, evaluate
from harness.report.claims.definition import Definition
from harness.report.claims.metrics import METRICS
from harness.report.claims.reader import make_definitions
from harness.report.claims.rows import ClaimRow, label_cell
from harness.run.plan import plan_cells
from harness.workloads.accelerator import make_step
from harness.workloads.emulated import NoStep
from tests.harness.configs import experiment

Why = Literal["judged", "hardware", "config"]
_HARDWARE: Final = (
    "the accelerator is emulated",
    "there is no accelerator",
    "the CPU computes the steps",
    "the joules of",
    "the accelerator is no",
    " devices that the claim is of",
)
"""Parts of the reasons that name a GPU, boards or sensors."""
_LONG_S: Final = 1000.0
"""An epoch as long as any claim needs."""


@cache
def read_scales() -> Mapping[tuple[str, str], Experiment]:
    """Return every judged experiment at every scale that it has."""
    found = {}
    for name, path in list_packaged("experiment").items():
        for scale in ("small", "full") if "\nsizes:" in path.read_text(encoding="utf-8") else ("small",):
            found[name, scale] = experiment(f"+experiment={name}", f"scale={scale}")
    return {key: one for key, one in found.items() if one.judged}


def list_asked(name: str, made: Experiment) -> Iterator[Definition]:
    """Yield the claims that an experiment asks."""
    drawn = list_packaged("figure")
    for one in make_definitions():
        if one.figure in made.figures or (one.figure == name and name not in drawn):
            yield one


@cache
def plan_rows(name: str, scale: str) -> tuple[ClaimRow, ...]:
    """Return the rows that a run would have where every epoch is valid and long, and every metric is 1."""
    made = read_scales()[name, scale]
    accelerators = {workload: _label_step(made, workload) for workload in made.workloads}
    checks = {
        key: str(getattr(instantiate(spec.target, spec.params), "model_check", ""))
        for key, spec in made.workloads.items()
    }
    rows = []
    for cell in plan_cells(made):
        loader, dataset = made.loaders[cell.loader], made.datasets[cell.workload].params
        kb = 2000.0 if made.datasets[cell.workload].target.endswith(".Synthetic") else dataset.get("mean_kb", 0.0)
        setting = next(iter(loader.setting.values()), None)
        labels = label_cell(made, cell.loader, cell.workload, cell.regime) | {
            "samples": dataset["samples"],
            "sample_kb": kb,
            "ranks": made.count_ranks(cell.loader),
            "setting": setting if isinstance(setting, int | float) else None,
        }
        one = ClaimRow(
            cell_id=cell.cell_id,
            epoch=1,
            labels=labels,
            key=cell.loader,
            values={**dict.fromkeys(METRICS, 1.0), "duration_s": _LONG_S},
            verdict="valid",
            estimated=frozenset({"cpu", "gpu"}),
            accelerator=accelerators[cell.workload],
            repeat=cell.repeat,
            model_check=checks[cell.workload],
        )
        rows += [replace(one, epoch=epoch) for epoch in range(1, made.epochs + 1)]
    return tuple(rows)


def _label_step(made: Experiment, workload: str) -> str:
    """Return the label of a workload's steps on a machine without a GPU."""
    kind = made.accelerator.kind
    if kind == "none":
        return NoStep.label
    if kind in ("cpu", "cuda"):
        return kind
    spec = made.workloads[workload]
    settings = {**made.accelerator.model_dump(), "kind": "emulated"}
    return make_step(instantiate(spec.target, spec.params), settings, 0).label


def find_reason(claim: Definition, name: str, scale: str) -> tuple[Why, str]:
    """Return whether a run of an experiment judges a claim, and why not."""
    found = evaluate(claim, plan_rows(name, scale))
    if found.verdict != NOT_CHECKED and "one repeat has no interval" in found.reason:
        return "config", "one repeat has no interval"
    if found.verdict != NOT_CHECKED:
        return "judged", ""
    return "hardware" if any(part in found.reason for part in _HARDWARE) else "config", found.reason


def find_best(claim: Definition, scale: str) -> tuple[Why, str]:
    """Return the same for the experiment of that scale which judges it best."""
    order = ("judged", "hardware", "config")
    made = read_scales()
    every = [
        find_reason(claim, name, of)
        for (name, of), one in made.items()
        if (of == scale or (name, scale) not in made) and claim in list_asked(name, one)
    ]
    return min(every, key=lambda one: order.index(one[0]))


def main() -> None:
    """Print the counts of a scale, and what its config leaves unjudged."""
    scale = sys.argv[1] if len(sys.argv) > 1 else "small"
    counts: dict[str, Counter[str]] = {}
    for claim in make_definitions():
        why, reason = find_best(claim, scale)
        counts.setdefault(claim.source.partition(",")[0], Counter())[why] += 1
        if why == "config":
            print(f"{claim.id}: {reason}")
    for paper, count in counts.items():
        print(f"{paper:30} {count.total():4} {dict(count)}")
    print(f"{'all':30} {dict(sum(counts.values(), Counter()))}")


if __name__ == "__main__":
    main()
