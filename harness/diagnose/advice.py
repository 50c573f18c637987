"""What to change, by what limits the accelerator and by the stage that takes longest; pure.

The remedies by stage are from the textbook's sections 1, 3 and 5, in the words of this project's keys.
"""

from __future__ import annotations

import math
from typing import Final

from harness.diagnose.diagnosis import Diagnosis, Stage
from harness.report.labels import UNKNOWN, megabytes, significant

_NATIVE: Final = ("dali", "spdl", "streaming")
"""Loaders that leave Python for native code or threads."""
_TO_NATIVE: Final = "loader=dali or loader=spdl: samples are decoded and transformed by native code or in threads."


def suggest_changes(diagnosis: Diagnosis, knee: int, limit: str, stage: Stage) -> tuple[str, ...]:
    """Return what to change, the most promising first."""
    key = f"loader.{diagnosis.subject.workers_key}"
    cheaper = _list_cheaper(diagnosis, stage)
    match limit:
        case "accelerator":
            enough = f"Nothing: {key}=1 is enough, and" if knee == 1 else f"{key}={knee}:"
            fewer = [f"To need fewer workers: {text}" for text in cheaper[:1]] if knee > 1 else []
            return (f"{enough} more workers only deepen the buffer.", *fewer)
        case "cores":
            return (*cheaper, _count_cores(diagnosis), f"{key}={knee}: with more, workers only share the same cores.")
        case "step":
            return (f"{key}={knee}, or fewer: every worker takes processor time from the step.", *cheaper)
        case "storage":
            return (*_list_for_reads(diagnosis), f"{key}={knee}: with more, workers only share the same storage.")
        case "workers":
            many = max(knee * 2, math.ceil(diagnosis.load_s / diagnosis.compute_s))
            return (f"{key}={many}, or 'diagnose.workers=[{knee},{many}]' to see.", *cheaper)
        case _:
            return (
                "Find what the workers wait for (`py-spy dump` on one of them shows it): a lock, a service, memory.",
                f"{key}={knee}: with more, workers only wait side by side.",
            )


def _count_cores(diagnosis: Diagnosis) -> str:
    """Return how many cores would be enough, and how much processor time a batch may take on the cores of here."""
    cores = diagnosis.machine.cores
    needed = math.ceil((diagnosis.load_cpu_s + diagnosis.compute_cpu_s) / diagnosis.compute_s)
    if needed <= cores:
        return f"These {cores} cores to itself: {needed} would feed it."
    text = f"{needed} cores would feed it as it is ({cores} are here)"
    if (spare := cores * diagnosis.compute_s - diagnosis.compute_cpu_s) > 0:
        takes = format_ms(diagnosis.load_cpu_s)
        text += f"; on these, a batch may take {format_ms(spare)} of processor time, and takes {takes}"
    return f"{text}."


def _list_cheaper(diagnosis: Diagnosis, stage: Stage) -> list[str]:
    """Return how the slowest stage is made cheaper."""
    loader = diagnosis.subject.loader
    native = [] if loader in _NATIVE else [_TO_NATIVE]
    match stage.kind:
        case "read":
            return _list_for_reads(diagnosis)
        case "decode":
            return [*native, "Store samples at the size that is trained on, so that there is less to decode."]
        case "augment":
            where = "after a crop and not before it, on fewer samples, or on the accelerator"
            return [*native, f"Make {stage.name} cheaper: {where}."]
        case "collate":
            return ["A cheaper layout of batches: samples of like length pad less, and bytes are smaller than floats."]
        case "transfer":
            stream = "loader=spdl: a batch is copied on a stream of its own while the step before it computes."
            fewer = (
                "Move fewer bytes: whole numbers of 8 bits, made floats on the accelerator, are a quarter of floats."
            )
            return [fewer] if loader == "spdl" else [stream, fewer]
        case _:
            threads = "loader=spdl: threads hand batches over without copying them from process to process."
            return [*([threads] if loader == "pytorch" else []), "Larger batches, so that fewer are handed over."]


def _list_for_reads(diagnosis: Diagnosis) -> list[str]:
    subject, machine = diagnosis.subject, diagnosis.machine
    text = "Read large sequential pieces in the place of single files: python -m loaders.streaming convert, then its "
    found = [f"{text}daemon (docs/streaming.md)."]
    if not machine.caches(subject):
        files, free = megabytes(subject.bytes), megabytes(machine.free_bytes)
        found.append(f"More memory, or a faster disk: {files} of files do not stay in {free} of free memory.")
    return found


def format_ms(seconds: float | None) -> str:
    """Write a duration given in s in ms."""
    return UNKNOWN if seconds is None else f"{significant(seconds * 1e3)} ms"
