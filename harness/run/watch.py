"""`python -m harness.run.watch FOLDER`: what a run does now, from another terminal, or as a page of this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from energymon.analysis.tuples import EnergyTuple, stored_tuples
from energymon.clock.monotonic import NS
from energymon.errors import EnergyError
from energymon.store import SqliteStore
from harness.errors import ConfigError, HarnessError
from harness.results.files import read_json
from harness.results.folder import RunFolder
from harness.run.progress import LiveState, write_clock
from harness.system.program import run_program

_LOOK_S: Final = 2.0
_SILENT_S: Final = 10.0
"""A run that wrote nothing for so long has been killed, or its machine stands still."""
_POWER_S: Final = 3.0
_WIDTH: Final = 40
_DOMAINS: Final = {
    "CPU": "cpu_energy",
    "CPU (estimate)": "cpu_energy_estimate",
    "DRAM": "memory_energy",
    "GPU": "gpu_energy",
}
"""Fields of an energy tuple by how their power is called."""
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{every:g}">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>
:root {{ color-scheme: light dark }} body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto;
padding: 0 1rem }} progress {{ width: 100%; height: 1rem }} p {{ margin: .3rem 0; overflow-wrap: anywhere }}
</style><h1>{title}</h1>{body}</html>
"""


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """A line of the screen, above a bar where it counts towards a total."""

    text: str
    done: float = 0
    total: float = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a run until it is over; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.run.watch",
        description="Show a run at work: its cell, how quickly samples come, how long the step waits for them, and the "
        "power that this machine's sensors show. From another machine: ssh HOST, and the same command there.",
    )
    parser.add_argument("folder", nargs="?", default="results/latest", help="a run's folder (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument(
        "--web", type=int, metavar="PORT", help="also serve it as a page on 127.0.0.1; 0 takes a free port"
    )
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, style="red", highlight=False, soft_wrap=True)
    try:
        run = RunFolder.find(options.folder, Path("results"))
        with _served(run, options.web, console):
            _show(run, console, once=options.once or (options.web is None and not console.is_terminal))
    except HarnessError as error:
        errors.print(f"error: {error}", markup=False)
        return error.exit_status
    return 0


def _show(run: RunFolder, console: Console, *, once: bool) -> None:
    if not run.live.exists():
        console.print(_over(run), soft_wrap=True)
    elif once:
        console.print(_draw(look(run)))
    else:
        with Live(console=console, auto_refresh=False, transient=True) as screen:
            while lines := look(run):
                screen.update(_draw(lines), refresh=True)
                time.sleep(_LOOK_S)
        console.print(_over(run), soft_wrap=True)


def _over(run: RunFolder) -> str:
    return f"{run.folder.name}: no run is at work there; python -m harness.report {run.folder} shows what it measured"


def look(run: RunFolder, now_s: float | None = None) -> list[ScreenLine]:
    """Return what a run does now; empty when it is over. `now_s` is the time, s since 1970 (default: now)."""
    if not run.live.exists():
        return []
    try:
        state = read_json(run.live, LiveState, "remove it")
    except HarnessError:
        if run.live.exists():
            raise
        return []  # it ended at this moment
    left = "" if state.left_s is None else f", {write_clock(state.left_s)} left"
    lines = []
    if state.cells:
        lines.append(ScreenLine(f"{state.cells_done} of {state.cells} cells{left}", state.cells_done, state.cells))
    lines.append(
        ScreenLine(state.doing or "between two cells", state.samples_done, state.samples if state.epoch_s else 0)
    )
    if state.epoch_s and state.samples_done:
        rate, stall = state.samples_done / state.epoch_s, min(1.0, state.stall_s / state.epoch_s)
        lines.append(ScreenLine(f"{rate:.3g} samples a second; the step waited {100 * stall:.0f} % of the time"))
    lines += [ScreenLine(power)] if (power := ", ".join(read_power(run.energy))) else []
    silent_s = (time.time() if now_s is None else now_s) - state.t_s
    if silent_s > _SILENT_S:
        lines.append(ScreenLine(f"silent for {write_clock(silent_s)}: the run was killed, or its machine stands still"))
    return lines


def read_power(path: Path) -> Iterator[str]:
    """Yield the mean power of each domain over the last seconds of a store; nothing where it has none yet."""
    found: list[EnergyTuple] = []
    seconds = 0.0
    with suppress(EnergyError), SqliteStore.open(path) as store:
        for session in store.sessions()[-1:]:
            end_ns = store.last_tick_ns(session.node)
            found = list(stored_tuples(store, end_ns - round(_POWER_S * NS), end_ns, session.node))
            seconds = len(found) * session.interval_ns / NS
    for name, field in _DOMAINS.items():
        each = [joules for one in found if (joules := getattr(one, field)) is not None]
        if each:
            yield f"{name} {sum(each) / seconds:.3g} W"


def _draw(lines: Sequence[ScreenLine]) -> Table:
    drawn = Table.grid()
    for line in lines:
        drawn.add_row(Text(line.text))
        if line.total:
            drawn.add_row(ProgressBar(total=line.total, completed=line.done, width=_WIDTH))
    return drawn


@contextmanager
def _served(run: RunFolder, port: int | None, console: Console) -> Iterator[None]:
    """Serve the page on the loopback address until the context is left."""
    if port is None:
        yield
        return

    class Page(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            try:
                lines = look(run) or [ScreenLine(_over(run))]
            except HarnessError as error:
                lines = [ScreenLine(str(error))]
            body = _to_page(run, lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--web {port}: {error}; expected a free port, or 0") from error
    with server:
        Thread(target=server.serve_forever, name="web", daemon=True).start()
        console.print(f"http://127.0.0.1:{server.server_port}/")
        try:
            yield
        finally:
            server.shutdown()


def _to_page(run: RunFolder, lines: Sequence[ScreenLine]) -> str:
    body = "".join(
        f"<p>{escape(line.text)}</p>"
        + (f'<progress value="{line.done:g}" max="{line.total:g}"></progress>' if line.total else "")
        for line in lines
    )
    return _PAGE.format(every=_LOOK_S, title=escape(run.folder.name), body=body)


if __name__ == "__main__":
    run_program(main)
