"""Finds the sample at which a pipeline of DALI's operators stopped: DALI seldom names it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from loaders.base import Samples
from loaders.errors import LoaderError, SampleError
from loaders.pipeline import Pipeline, sample_error

_SEARCHERS: Final = 16
"""Threads that read suspects again; far storage answers many reads as fast as one."""


class PipelineFailure(LoaderError):
    """DALI's message, and the ids of the batches that were under way, any of which may be at fault."""

    def __init__(self, message: str, batches: Sequence[Sequence[int]]) -> None:
        super().__init__(message)
        self.message, self.batches = message, batches


def find_bad_sample(failure: PipelineFailure, samples: Samples, pipeline: Pipeline) -> LoaderError:
    """Return the error of the sample that DALI's operators failed at, in the words of the pipeline's own decoder."""
    position = re.search(r"[Ff]ailed to decode sample #(\d+)", failure.message)
    at = int(position[1]) if position else None
    window = [sample_id for batch in failure.batches for sample_id in batch]
    named = [
        sample_id
        for batch in failure.batches
        for index, sample_id in enumerate(batch)
        if index == at or samples.paths[sample_id] in failure.message
    ]
    bad = _first_bad(samples, pipeline, [*named, *window])
    if bad is not None:
        return bad
    if at is not None and window and at < len(failure.batches[0]):
        sample_id = failure.batches[0][at]
        return SampleError(
            f"sample {sample_id} ({samples.path(sample_id)}) cannot be decoded by DALI, though the pipeline's own "
            f"decoder can: {failure.message}"
        )
    first = list(failure.batches[0]) if failure.batches else []
    return LoaderError(f"DALI's pipeline failed at samples {first}: {failure.message}")


def _first_bad(samples: Samples, pipeline: Pipeline, suspects: Iterable[int]) -> SampleError | None:
    def check(sample_id: int) -> SampleError | None:
        stage = "read"
        try:
            encoded = pipeline.read(samples, sample_id)
            stage = "decode"
            pipeline.decode(encoded, samples, sample_id)
        except Exception as error:  # noqa: BLE001 - whatever reading and decoding raise is the sample's error
            return sample_error(samples, sample_id, stage, error)
        return None

    pool = ThreadPoolExecutor(_SEARCHERS, thread_name_prefix="bad-sample-search")
    try:
        return next((error for error in pool.map(check, suspects) if error is not None), None)
    finally:
        pool.shutdown(cancel_futures=True)
