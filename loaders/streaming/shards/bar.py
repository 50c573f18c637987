"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar from the first call of what it yields, with (done, in all), to the end of the block."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(stderr=True))
    task = bars.add_task(text, total=None)

    def show(done: int, total: int) -> None:
        bars.start()  # not before there is something to show: an error that comes first stands alone
        bars.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bars.live.is_started:
            bars.stop()
