"""How far a diagnosis is, on the terminal; drawn between batches, for a thread that draws would take time from them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

__all__ = ["Progress"]

_EVERY_S: Final = 0.25


class Progress:
    """A bar for what is measured now; where there is no terminal, a line for each thing that is measured."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._said: set[str] = set()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def phase(self, text: str) -> None:
        """Take note of what is measured now."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=None)
        self._bars.refresh()
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def tick(self, done: int, total: int) -> None:
        """Take note of how far it is."""
        now = time.monotonic()
        if self._task is not None and now - self._drawn > _EVERY_S:
            self._bars.update(self._task, completed=done, total=total, refresh=True)
            self._drawn = now

    def dataset(self, what: str, done: int, total: int) -> None:
        """Take note of how far the making of the dataset is."""
        if what not in self._said:
            self._said.add(what)
            self.phase(what)
        self.tick(done, total)
