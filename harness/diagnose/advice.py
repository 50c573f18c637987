"""What to change, by what limits the accelerator and by the stage that takes longest; pure.

The remedies by stage are those of the textbook's sections 1, 3 and 5, in the words of this project's keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.diagnose.diagnosis import Diagnosis, Stage
from harness.report.labels import UNKNOWN, megabytes, significant

_NATIVE = ("dali", "spdl", "streaming")
"""Loaders that leave Python for native code or threads."""


def suggest_changes(diagnosis: Diagnosis, knee: int, limit: str, stage: Stage) -> tuple[str, ...]:
    """Return what to change, the most promising first."""
    subject = diagnosis.subject
    key = f"loader.{subject.workers_key}"
    match limit:
        case "accelerator":
            more = "more workers only deepen the buffer"
            said = [f"{key}={knee}: {more}." if knee > 1 else f"Nothing: {key}=1 is enough, and {more}."]
            if knee > 1:
                said += [f"To need fewer workers: {text}" for text in _cheaper(diagnosis, stage)][:1]
            return tuple(said)
        case "cores":
            said = [*_cheaper(diagnosis, stage), _cores(diagnosis)]
            said.append(f"{key}={knee}: with more, workers only share the same cores.")
            return tuple(said)
        case "step":
            return (
                f"{key}={knee}, or fewer: every worker takes processor time from the step.",
                *_cheaper(diagnosis, stage),
            )
        case "storage":
            return (*_reading(diagnosis), f"{key}={knee}: with more, workers only share the same storage.")
        case "workers":
            many = max(knee * 2, math.ceil(diagnosis.load_s / diagnosis.compute_s))
            return (f"{key}={many}, or 'diagnose.workers=[{knee},{many}]' to see.", *_cheaper(diagnosis, stage))
        case _:
            return (
                "Find what the workers wait for (`py-spy dump` on one of them shows it): a lock, a service, memory.",
                f"{key}={knee}: with more, workers only wait side by side.",
            )


def _cores(diagnosis: Diagnosis) -> str:
    """Return how many cores would do, and what a batch may cost on those that are here."""
    cores = diagnosis.machine.cores
    needed = math.ceil((diagnosis.load_cpu_s + diagnosis.compute_cpu_s) / diagnosis.compute_s)
    if needed <= cores:
        return f"These {cores} cores to itself: {needed} would feed it."
    text = f"{needed} cores would feed it as it is ({cores} are here)"
    if (spare := cores * diagnosis.compute_s - diagnosis.compute_cpu_s) > 0:
        takes = format_ms(diagnosis.load_cpu_s)
        text += f"; on these, a batch may take {format_ms(spare)} of processor time, and takes {takes}"
    return f"{text}."


def _cheaper(diagnosis: Diagnosis, stage: Stage) -> Iterable[str]:
    """Return how the slowest stage is made cheaper."""
    subject = diagnosis.subject
    native = "" if subject.loader in _NATIVE else "loader=dali or loader=spdl"
    match stage.kind:
        case "read":
            yield from _reading(diagnosis)
        case "decode":
            if native:
                yield f"{native}: samples are decoded by native code in threads."
            yield "Store samples at the size that is trained on, so that there is less to decode."
        case "augment":
            if native:
                yield f"{native}: transforms run in native code or in threads."
            yield f"Make {stage.name} cheaper: after a crop and not before it, on fewer samples, or on the accelerator."
        case "collate":
            yield "A cheaper layout of batches: samples of like length pad less, and bytes are smaller than floats."
        case "transfer":
            if subject.loader != "spdl":
                yield "loader=spdl: a batch is copied on a stream of its own while the step before it computes."
            yield "Move fewer bytes: whole numbers of 8 bits, made floats on the accelerator, are a quarter of floats."
        case _:
            if subject.loader == "pytorch":
                yield "loader=spdl: threads hand batches over without copying them from process to process."
            yield "Larger batches, so that fewer are handed over."


def _reading(diagnosis: Diagnosis) -> Iterable[str]:
    subject, machine = diagnosis.subject, diagnosis.machine
    yield (
        "Read large sequential pieces in the place of single files: python -m loaders.streaming convert, "
        "then its daemon (docs/streaming.md)."
    )
    if not machine.caches(subject):
        yield (
            f"More memory, or a faster disk here: {megabytes(subject.bytes)} of files do not stay in the "
            f"{megabytes(machine.free_bytes)} of memory that are free."
        )


def format_ms(seconds: float | None) -> str:
    """Write a duration given in s in ms."""
    return UNKNOWN if seconds is None else f"{significant(seconds * 1e3)} ms"
