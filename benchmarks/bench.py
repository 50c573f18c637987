"""What all benchmarks have in common: command line, table, turns in words, a folder in memory, figures of processes.

Imported first, it has Python search this folder last: its loaders.py must not hide the package of that name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
PYTHONPATH = f"{REPO}{os.pathsep}{HERE}"
"""For the processes that a benchmark starts."""
sys.path[:] = [str(REPO), *(path for path in sys.path if Path(path).resolve() != HERE), str(HERE)]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: the demand, the measured figure, and whether it is met."""

    what: str
    asked: str
    measured: str
    met: bool | None = None
    """None where nothing is asked."""


def at_least(what: str, least: float | None, value: float, measured: str, form: str = "") -> Line:
    """Return a line that asks for a value of `least`, written by `form`; None asks for nothing."""
    return Line(what, "", measured) if least is None else Line(what, f">= {least:{form}}", measured, value >= least)


def at_most(what: str, most: float | None, value: float, measured: str, form: str = "") -> Line:
    """Return a line that asks for no more than `most`, written by `form`; None asks for nothing."""
    return Line(what, "", measured) if most is None else Line(what, f"<= {most:{form}}", measured, value <= most)


def spread(values: Iterable[float], digits: int = 3, more: str = "") -> str:
    """Write the median and the range of repeats, with `more` in their bracket."""
    known = list(values)
    return f"{median(known):.{digits}f} ({min(known):.{digits}f} to {max(known):.{digits}f}{more and '; '}{more})"


def make_parser(doc: str | None, quick: str, parts: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return a command line with --quick, and with --only where there are parts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    if parts:
        parser.add_argument("--only", choices=parts, action="append", help="only this part; may be repeated")
    return parser


def run(lines: Iterable[Line], widths: tuple[int, int, int] = (58, 14, 46)) -> int:
    """Print what the machine is and the table; returns the exit status. SIGTERM ends it as an exception does."""
    from harness.errors import HarnessError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    try:
        return 1 if show(lines, widths) else 0
    except HarnessError as error:
        print(f"benchmarks/{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return error.exit_status


def show(lines: Iterable[Line], widths: tuple[int, int, int] = (58, 14, 46)) -> int:
    """Print each line as soon as it is measured; return how many fall short.

    `widths` are the columns' in characters; longer text pushes the rest of its line to the right.
    """
    columns = " ".join(f"{{:<{width}}}" for width in widths) + " {}"
    print(columns.format("demand", "asked", "measured", "verdict"), flush=True)
    short = 0
    for line in lines:
        verdict = "" if line.met is None else "met" if line.met else "SHORT"
        print(columns.format(line.what, line.asked, line.measured, verdict).rstrip(), flush=True)
        short += line.met is False
    return short


@contextlib.contextmanager
def memory_folder(name: str) -> Iterator[Path]:
    """Make a temporary folder in memory where the machine has one for that: no disk is measured."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix=f"joulefeed-{name}-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextlib.contextmanager
def namespaces(*roles: str) -> Iterator[list[str]]:
    """Make network namespaces and remove them again; yields their paths."""
    run_id = uuid.uuid4().hex[:8]
    with contextlib.ExitStack() as stack:
        names = [f"jfb-{run_id}-{role}" for role in roles]
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        yield [f"/run/netns/{name}" for name in names]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that all living threads of the processes have used, system calls included."""
    total_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns * 1e-9


def status_kb(pid: int, key: str) -> int:
    """Return a number of a process's status, KiB; 0 where it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0)
