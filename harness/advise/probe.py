"""Probes choices as cells of short runs, round by round, until the time is up or nothing is left to learn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from harness.advise.model import FULL, Findings, Place, ProbedEpoch
from harness.advise.question import BOUND, WHOLE_BATCHES, Choice, Question
from harness.config.targets import instantiate
from harness.config.validation import quote_value
from harness.datasets import DatasetHandle
from harness.diagnose.diagnosis import Machine, Stage
from harness.diagnose.stages import time_stages
from harness.report.labels import spell
from harness.results.epoch_row import EpochRow, read_rows, select_settled
from harness.results.folder import Ledger, RunFolder
from harness.results.metrics import EpochMetrics
from harness.run.again import describe_run, find_durations
from harness.run.driver import measure
from harness.run.progress import RunProgress
from harness.workloads import Workload

_EPOCHS: Final = 2
"""Of a first probe; the first one does not count."""
_FEW: Final = 8
"""Batches of a first probe of local files; those of contenders have `FULL`."""
_PAIR_S: Final = 7.0
"""What a first probe of far files may take two readers, unless that is fewer batches than `_FEWEST`."""
_FEWEST: Final = 4
_TRIP_BYTES: Final = 2**17
"""What a reader gets of a file in a round trip."""
_CONTENDERS: Final = 3
"""The best choices, which are probed again beside the one in use."""
_USUAL_CELL_S: Final = 6.0
_STAGES_S: Final = 6.0
_STAGES_SHARE: Final = 0.1
"""What the stages may take: so many seconds, and such a share of the budget."""
_MOST_AHEAD: Final = 0.5
"""Share of an epoch that is taken to have come before it, at most: a loader that keeps a cache receives nothing."""


class Prober:
    """Runs the rounds. Every round is a run of its own, below the folder of the advice."""

    def __init__(self, question: Question, folder: Path, progress: RunProgress) -> None:
        """Open the dataset, which is generated the first time."""
        self.question = question
        self._folder, self._progress = folder, progress
        _, experiment = question.compose([Choice(BOUND)])
        ((_, workload),) = experiment.workloads.items()
        dataset = experiment.datasets[workload.key]
        handle: DatasetHandle = instantiate(dataset.target, dataset.params).open(question.cache, progress.follow)
        samples = len(handle.samples)
        model: Workload = instantiate(workload.target, workload.params)
        self._batch, self._handle, self._pipeline = model.batch_size, handle, model.transform
        self._size = "dataset.limit" if dataset.key == "tree" else "dataset.samples"
        regime = experiment.regimes[question.regime]
        place = Place(
            cores=len(os.sched_getaffinity(0)),
            rate_bytes=None if regime.is_local or regime.rate_gbit is None else regime.rate_gbit * 1e9 / 8,
            rtt_s=0.0 if regime.is_local else regime.rtt_ms / 1e3,
            batches=-(-samples // self._batch),
        )
        self.found = Findings(
            subject=f"{spell(question.workload)}, {question.regime}",
            in_use=question.incumbent,
            place=place,
            objective=question.options.objective,
            command=question.command,
            paste=question.paste,
            max_rss_gb=question.options.max_rss_gb,
            refused=question.refused,
        )
        self._epochs, self._first = 3, _FEW
        if place.rtt_s:
            batch_s = int(handle.samples.sizes.sum()) / samples * self._batch / _TRIP_BYTES * place.rtt_s / 2
            self._epochs, self._first = _EPOCHS, max(_FEWEST, min(int(_PAIR_S / batch_s), FULL))
        self._beside_s: dict[str, float] = {}
        """What a cell takes beside settled epochs."""
        self._round_s = 10.0
        """What a round takes beside its cells; before the first one a guess."""

    def run(self) -> Findings:
        """Probe; raises HarnessError where nothing can be measured."""
        question, found = self.question, self.found
        began = time.monotonic()
        deadline = began + question.options.budget_s
        found.stages = self._time_stages(min(_STAGES_S, _STAGES_SHARE * question.options.budget_s))
        self._measure([Choice(BOUND), question.incumbent, *question.others], self._first)
        if found.place.step_s:
            others = [*self._with_other_threads(), *found.derive(lambda choice: str(question.spec(choice).readers))]
            self._measure(self._fitting(others, (deadline - time.monotonic()) / 2, self._first, _EPOCHS), self._first)
        batches = self._first
        while found.decide() != "cannot say" and len(contenders := found.contenders(_CONTENDERS)) > 1:
            longer = max(FULL, batches if found.place.rtt_s else 2 * batches)
            for number in (longer, batches):
                turn = self._fitting(contenders, deadline - time.monotonic(), number, self._epochs)
                if contenders[0] in turn[:-1]:
                    break
            else:
                break
            batches = number
            self._measure(turn, batches, self._epochs)
        found.seconds = time.monotonic() - began
        return found

    def _time_stages(self, budget_s: float) -> tuple[Stage, ...]:
        samples = self._handle.samples
        return time_stages(
            self._pipeline,
            samples,
            batch_size=self._batch,
            seed=0,
            device="cpu",
            budget_s=budget_s,
            cached=Machine.find().caches(int(samples.sizes.sum())),
            tick=partial(self._progress.follow, "timing the stages"),
        ).stages

    def verify(self, choices: Sequence[Choice], repeats: int = 2, epochs: int = _EPOCHS) -> Mapping[str, list[float]]:
        """Return the seconds of valid whole epochs of some choices, measured in turns."""
        run = self._run(choices, f"repeats={repeats}", f"epochs={epochs}")
        rows = [row for row in select_settled(read_rows(run.epochs_parquet, EpochRow)) if row.is_valid]
        return {one.key: s for one in choices if (s := [row.duration_s for row in rows if row.loader == one.key])}

    def _with_other_threads(self) -> list[Choice]:
        """Return the best choices that read no files, with a thread more than there are processors, or as many."""
        cores = self.found.place.cores
        best = [one.choice for one in self.found.ranked[:_CONTENDERS] if one.readers is None]
        threads = {choice: self.question.spec(choice).params.get("num_threads") for choice in best}
        return [choice.but(num_threads=cores + (now <= cores)) for choice, now in threads.items() if now]

    def _fitting(self, choices: Iterable[Choice], left_s: float, batches: int, epochs: int) -> list[Choice]:
        """Return the first choices whose probes of so many batches fit into some time."""
        left_s -= self._round_s
        batches = epochs * min(batches, self.found.place.batches)
        every, chosen = self.found.candidates, list[Choice]()
        for choice in choices:
            own = [every[choice.key]] if choice.key in every else [*every.values()]
            like = [(one.choice.key, one.probes[-1]) for one in own if one.choice.loader == choice.loader]
            usual = (self._beside_s[key] + batches * probe.epoch_s / probe.batches for key, probe in like)
            took_s = max(usual, default=_USUAL_CELL_S)
            if took_s <= left_s:
                left_s -= took_s
                chosen.append(choice)
        return chosen

    def _measure(self, choices: Sequence[Choice], batches: int, epochs: int = _EPOCHS) -> None:
        """Probe choices once, in epochs of so many batches, and take what their valid rows say."""
        if not choices:
            return
        began = time.monotonic()
        few = [f"{self._size}={batches * self._batch}"] if batches * self._batch < len(self._handle.samples) else []
        run = self._run(choices, *few, f"epochs={epochs}")
        rows = {(row.cell_id, row.epoch): row for row in read_rows(run.epochs_parquet, EpochRow)}
        valid = {(row.cell_id, row.epoch) for row in select_settled(rows.values()) if row.is_valid}
        metrics = {(m.cell_id, m.epoch): m for m in read_rows(run.metrics_parquet, EpochMetrics)}
        cells_s = find_durations(Ledger(run.ledger).read_entries())
        experiment = run.read_experiment()
        is_far = self.found.place.rtt_s > 0 and experiment.placement == "remote"
        disturbed = describe_run(run, experiment.checks)
        by_key = {choice.key: choice for choice in choices}
        for cell in run.read_plan().cells:
            is_streamed = is_far and experiment.loaders[cell.loader].reads == "stream"
            seen = [_probe(rows[at], metrics[at], self._batch, is_streamed) for at in valid if at[0] == cell.cell_id]
            if cell.loader == BOUND and seen:
                step_s = median(one.epoch_s / one.batches for one in seen)
                self.found.place = replace(self.found.place, step_s=step_s)
            elif cell.loader != BOUND and seen:
                choice = by_key[cell.loader]
                whole = choice.loader in WHOLE_BATCHES
                self.found.take(choice, self._readers(choice), seen, whole_batches=whole)
                self._beside_s[choice.key] = cells_s[cell.cell_id] - epochs * median(one.epoch_s for one in seen)
            elif cell.loader not in self.found.candidates:
                refused = [row.valid for row in rows.values() if row.cell_id == cell.cell_id and not row.is_valid]
                self.found.spoiled[cell.loader] = "; ".join([*dict.fromkeys(refused)] or ["its cell failed"])
        self.found.notes += [line for line in disturbed if line not in self.found.notes]
        self._round_s = time.monotonic() - began - sum(cells_s.values())

    def _readers(self, choice: Choice) -> int | None:
        spec = self.question.spec(choice)
        found = spec.params.get(spec.readers)
        if spec.readers == "read_threads" and found is None:
            found = spec.params["num_threads"]
        return found if isinstance(found, int) else None

    def _run(self, choices: Sequence[Choice], *more: str) -> RunFolder:
        results_dir = quote_value(str(self._folder / "probes"))
        cfg, experiment = self.question.compose(choices, *more, "energy.idle_s=0", f"results_dir={results_dir}")
        folder, _ = measure(experiment, cfg, self._progress, self.question.command, lambda _: None)
        return RunFolder(folder)


def _probe(row: EpochRow, metrics: EpochMetrics, batch: int, is_streamed: bool) -> ProbedEpoch:
    batches = -(-row.samples // batch)
    received = metrics.rx_bytes / row.bytes if is_streamed and metrics.rx_bytes is not None and row.bytes else 1.0
    return ProbedEpoch(
        batches=batches,
        # Some of it was decoded too, and some was not: half of it saved the epoch its time.
        ahead=batches * min(_MOST_AHEAD, max(0.0, 1 - received)) / 2,
        epoch_s=row.duration_s,
        first_s=metrics.first_batch_s,
        cpu_s=metrics.cell_cpu_s or 0.0,
        rx_bytes=metrics.rx_bytes or 0.0,
        rss_bytes=metrics.pss_peak_bytes or metrics.rss_peak_bytes or 0.0,
        joules=row.total_j,
        is_estimate=bool(row.estimated),
    )
