"""Progress on the terminal: a bar over cells and one over samples, or plain lines where there is no terminal.

A file of the run's folder has the same for those who watch the run from elsewhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from harness.results.cells import Cell

_QUIET_S = 30.0
_DRAW_S = 0.25
_LIVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """live.json: what a run does now. It is there while the run is at work, and is written every second."""

    t_s: float
    """When it was written, s since 1970."""
    doing: str
    """The present step; of a cell its loader, workload, regime, repeat and phase."""
    cells_done: int
    cells: int
    """0 before there is a plan."""
    left_s: float | None
    """Time left of the run; None before a cell is whole."""
    samples_done: int
    """Of the present epoch."""
    samples: int
    epoch_s: float
    """How long the epoch had lasted when so many samples were done; 0 between epochs."""
    stall_s: float
    """How long the step had waited for them."""


def write_clock(seconds: float) -> str:
    """Write a time as minutes and seconds, m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def write_live(path: Path, state: LiveState) -> None:
    """Write it. Where that is impossible, as on a full disk, nobody can watch and the run goes on."""
    fresh = path.with_suffix(".partial")
    with suppress(OSError):
        fresh.write_text(json.dumps(asdict(state)), encoding="utf-8")
        fresh.replace(path)


def remove_live(path: Path) -> None:
    """Remove it, as the run is over."""
    with suppress(OSError):
        path.unlink()


class _TimeLeft(ProgressColumn):
    """Time left of the run, from how long cells like the missing ones took."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left_s")
        return Text("" if left is None else f"{write_clock(left)} left", style="cyan")


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
        self._live: Path | None = None
        self._of = self._seen = 0
        self._epoch_s = self._stall_s = 0.0
        self._left: float | None = None

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
        if self._live is not None:
            remove_live(self._live)
        self.stop()

    def show_in(self, path: Path) -> None:
        """Write the shown state to a file too, for those who watch the run, until the run is over."""
        if self._live is not None:
            remove_live(self._live)
        self._live = path

    def doing(self, text: str) -> None:
        """Show the present step, before there are cells."""
        self._doing, self._since = text, time.monotonic()

    def _tell_what_lasts(self) -> None:
        since, limit_s = self._since, self._quiet_s
        while not self._over.wait(min(self._quiet_s / 10, _LIVE_S)):
            self._keep_live()
            if self._since != since:
                since, limit_s = self._since, self._quiet_s
            lasted_s = time.monotonic() - since
            if self._doing and lasted_s >= limit_s:
                self.note(f"{self._doing}, for {lasted_s:.0f} s so far")
                limit_s = 2 * lasted_s

    def _keep_live(self) -> None:
        if self._live is None:
            return
        state = LiveState(
            t_s=time.time(),
            doing=self._doing,
            cells_done=self._done,
            cells=self._total,
            left_s=self._left,
            samples_done=self._seen,
            samples=self._of,
            epoch_s=self._epoch_s,
            stall_s=self._stall_s,
        )
        write_live(self._live, state)

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
        self._started, self._of = time.monotonic(), samples
        self._label = f"{cell.loader} · {cell.workload} · {cell.regime} · repeat {cell.repeat}"
        self._left = self._left_s()
        self._bars.update(self._tasks["cells"], left_s=self._left)

    def phase(self, text: str) -> None:
        """Show the phase of the cell."""
        self.doing(f"{self._label}: {text}")
        self._seen, self._epoch_s, self._stall_s = 0, 0.0, 0.0
        self._bars.update(self._tasks["samples"], description=f"{self._label}: {text}", completed=0)

    def waits(self, text: str) -> None:
        """Show what the cell waits for; the time since its phase began goes on."""
        self._doing = f"{self._label}: {text}"
        self._bars.update(self._tasks["samples"], description=self._doing)

    def samples(self, epoch: int, done: int, stall_s: float = 0.0) -> None:
        """Show how many samples of an epoch have been trained on, and how long the step has waited for them."""
        if done == 0:
            self._since = time.monotonic()
        self._seen, self._epoch_s, self._stall_s = done, time.monotonic() - self._since, stall_s
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
        self._left = self._left_s()
        self._bars.update(self._tasks["cells"], completed=self._done, left_s=self._left)
        tail = f", {write_clock(self._left)} left" if self._left else ""
        self.note(f"[{self._done}/{self._total}{tail}] {line}")

    def _left_s(self) -> float | None:
        everything = [t for times in self._took.values() for t in times]
        if not everything:
            return None
        usual = mean(everything)
        return sum(mean(self._took[key]) if self._took.get(key) else usual for key in self._pending)
