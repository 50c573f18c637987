"""Progress on the terminal: a bar over cells and one over samples, or plain lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from harness.results.cells import Cell

_QUIET_S = 30.0
_DRAW_S = 0.25


class _TimeLeft(ProgressColumn):
    """Time left of the run, from how long cells like the missing ones took."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left_s")
        return Text("" if left is None else f"{_clock(left)} left", style="cyan")


class RunProgress:
    """Shows what the run does; on a terminal as bars, elsewhere as a line for every cell.

    What takes longer than half a minute has a line of its own, after twice as long another one, and so on.
    """

    def __init__(self, console: Console, quiet_s: float = _QUIET_S, *, has_thread: bool = True) -> None:
        """Say nothing yet. Without a thread only the calls draw, so that measuring is not disturbed in between."""
        self.console = console
        self._has_thread = has_thread
        self._drawn = 0.0
        self._doing = ""
        self._since = time.monotonic()
        self._quiet_s = quiet_s
        self._over = threading.Event()
        self._beat = threading.Thread(target=self._tell_what_lasts, name="progress", daemon=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _TimeLeft(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            auto_refresh=has_thread,
        )
        self._followed: tuple[str, TaskID] | None = None
        self._tasks: dict[str, TaskID] = {}
        self._took: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._pending: list[tuple[str, str]] = []
        self._total = self._done = 0
        self._done_before = False
        self._started = 0.0
        self._said: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        for shown in self._tasks.values():
            self._bars.update(shown, visible=False)
        if self._has_thread:
            self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._has_thread:
            self._beat.join()
        self.stop()

    def doing(self, text: str) -> None:
        """Show the present step, before there are cells."""
        self._doing, self._since = text, time.monotonic()

    def _tell_what_lasts(self) -> None:
        since, limit_s = self._since, self._quiet_s
        while not self._over.wait(self._quiet_s / 10):
            if self._since != since:
                since, limit_s = self._since, self._quiet_s
            lasted_s = time.monotonic() - since
            if self._doing and lasted_s >= limit_s:
                self.note(f"{self._doing}, for {lasted_s:.0f} s so far")
                limit_s = 2 * lasted_s

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def follow(self, what: str, done: int, total: int | None = None, detail: str = "") -> None:
        """Show how far something is, such as the making of a dataset.

        `total` is None where it is unknown; `detail` is the part of it that is done now.
        """
        is_done = total is not None and done >= total
        if self._followed is None or self._followed[0] != what:
            if self._followed is not None:
                self._bars.update(self._followed[1], visible=False)
            self._since = time.monotonic()
            self._followed = (what, self._bars.add_task(what, total=total))
            if not self.console.is_terminal:
                self.note(what if total is None else f"{what} ({total})")
        name = f"{what}: {detail}" if detail else what
        self._doing = "" if is_done else name if total is None else f"{name}: {done} of {total}"
        self._bars.update(self._followed[1], description=name, completed=done, total=total, visible=not is_done)
        if not self._has_thread and time.monotonic() - self._drawn > _DRAW_S:
            self._bars.refresh()
            self._drawn = time.monotonic()

    def start(self, cells: Sequence[Cell], already: int) -> None:
        """Begin the bar over cells; `already` of them have a result."""
        self._bars.start()
        self._total, self._done = len(cells) + already, already
        self._pending = [(cell.loader, cell.regime) for cell in cells]
        self._tasks["cells"] = self._bars.add_task("cells", total=self._total, completed=already)
        self._tasks["samples"] = self._bars.add_task("", total=None)
        if already and not self._done_before:
            self.note(f"{already} of {self._total} cells are done already")
        self._done_before = True

    def cell_started(self, cell: Cell, samples: int) -> None:
        """Show that a cell begins, of so many samples an epoch."""
        self._bars.update(self._tasks["samples"], total=samples)
        self._started = time.monotonic()
        self._label = f"{cell.loader} · {cell.workload} · {cell.regime} · repeat {cell.repeat}"
        self._bars.update(self._tasks["cells"], left_s=self._left_s())

    def phase(self, text: str) -> None:
        """Show the phase of the cell."""
        self.doing(f"{self._label}: {text}")
        self._bars.update(self._tasks["samples"], description=f"{self._label}: {text}", completed=0)

    def waits(self, text: str) -> None:
        """Show what the cell waits for; the time since its phase began goes on."""
        self._doing = f"{self._label}: {text}"
        self._bars.update(self._tasks["samples"], description=self._doing)

    def samples(self, epoch: int, done: int) -> None:
        """Show how many samples of an epoch have been trained on."""
        if done == 0:
            self._since = time.monotonic()
        self._doing = f"{self._label}: epoch {epoch}, {done} samples"
        self._bars.update(self._tasks["samples"], description=f"{self._label}: epoch {epoch}", completed=done)

    def cell_done(self, cell: Cell, summary: str) -> None:
        """Print that a cell is whole."""
        self._finish(cell, f"{self._label}: {summary}")

    def cell_failed(self, cell: Cell, reason: str) -> None:
        """Print that a cell failed, and why."""
        self._finish(cell, f"{self._label}: FAILED: {reason}")

    def stop(self) -> None:
        """Remove the bars."""
        self._bars.stop()

    def _finish(self, cell: Cell, line: str) -> None:
        self._doing = ""
        self._took[cell.loader, cell.regime].append(time.monotonic() - self._started)
        self._pending.remove((cell.loader, cell.regime))
        self._done += 1
        self._bars.update(self._tasks["cells"], completed=self._done, left_s=self._left_s())
        left = self._left_s()
        tail = f", {_clock(left)} left" if left else ""
        self.note(f"[{self._done}/{self._total}{tail}] {line}")

    def _left_s(self) -> float | None:
        everything = [t for times in self._took.values() for t in times]
        if not everything:
            return None
        usual = mean(everything)
        return sum(mean(self._took[key]) if self._took.get(key) else usual for key in self._pending)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
