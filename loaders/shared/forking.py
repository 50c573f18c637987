"""What workers are not to inherit when they are forked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_frozen"]


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Leave what is garbage in this process uncollected in the processes that are forked meanwhile.

    An object that ends its threads when it is collected, a pipeline of DALI's for one, would wait for ever in a process
    that these threads are not in.
    """
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
