"""Which sample it was that DALI's native pipeline stopped at, for DALI seldom names it."""

from __future__ import annotations

import re

from loaders.base import Samples
from loaders.errors import LoaderError, SampleError
from loaders.files import find_bad_sample

__all__ = ["explained"]


def explained(message: str, samples: Samples, window: list[int], batch_size: int) -> LoaderError:
    """Return the error of the image that broke the pipeline, by DALI's message.

    `window` are the ids of the batch that was asked for and of those read ahead, any of which may be at fault.
    """
    position = re.search(r"[Ff]ailed to decode sample #(\d+)", message)
    at = int(position[1]) if position else None
    named = [
        sample_id
        for index, sample_id in enumerate(window)
        if index % batch_size == at or samples.paths[sample_id] in message
    ]
    bad = find_bad_sample(samples, [*named, *window])
    if bad is not None:
        return bad
    if at is not None and at < len(window):
        path = samples.path(window[at])
        return SampleError(f"sample {window[at]} ({path}) cannot be decoded by DALI, though PIL can: {message}")
    return LoaderError(f"DALI's pipeline failed at samples {window[:batch_size]}: {message}")
