"""What all benchmarks have in common: command line, table, raw runs, a folder in memory, figures of processes.

Imported first, it has Python search this folder last: its loaders.py must not hide the package of that name.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
PYTHONPATH = f"{REPO}{os.pathsep}{HERE}"
"""For the processes that a benchmark starts."""
sys.path[:] = [str(REPO), *(path for path in sys.path if Path(path).resolve() != HERE), str(HERE)]

from raw_runs import RESULTS, describe_run, save_part  # noqa: E402


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: the demand, the measured figure, and whether it is met."""

    what: str
    asked: str
    measured: str
    met: bool | None = None
    """None where nothing is asked, or where repeats do not say."""
    raw: Mapping[str, object] = field(default_factory=dict)
    """The values behind the figure, which are kept: numbers, lists of them, or dataclasses."""


def at_least(what: str, least: float | None, value: float, measured: str, form: str = "", **raw: object) -> Line:
    """Return a line that asks for a value of `least`, written by `form`; None asks for nothing."""
    asked = "" if least is None else f">= {least:{form}}"
    return Line(what, asked, measured, None if least is None else value >= least, {"value": value, **raw})


def at_most(what: str, most: float | None, value: float, measured: str, form: str = "", **raw: object) -> Line:
    """Return a line that asks for no more than `most`, written by `form`; None asks for nothing."""
    asked = "" if most is None else f"<= {most:{form}}"
    return Line(what, asked, measured, None if most is None else value <= most, {"value": value, **raw})


def judge_ratios(
    what: str, asked: str, ratios: Sequence[float], more: str = "", digits: int = 3, **raw: object
) -> Line:
    """Judge turns by the 95 % interval of their mean ratio, on the log scale (Student's t).

    `asked` is like "<= 1.03", ">= 0.97" or "> 1", or nothing. A demand is met where the whole interval meets it, and
    falls short where all of it does; else it is inconclusive.
    """
    from harness.report.intervals import compare_pairs

    logs = dict(enumerate(map(math.log, ratios)))
    found = compare_pairs(dict.fromkeys(logs, 0.0), logs)
    mean = math.exp(fmean(logs.values()))
    low, high = (mean * math.exp(sign * found.half_width) for sign in (-1, 1)) if found else (0.0, math.inf)
    turns = f"{low:.{digits}f} to {high:.{digits}f}, {len(ratios)} turns" if found else "one turn has no interval"
    met = None
    if asked:
        operator, limit = asked.split()
        meets = {"<=": float.__le__, ">=": float.__ge__, ">": float.__gt__}[operator]
        each = {meets(low, float(limit)), meets(high, float(limit))}
        met = each.pop() if len(each) == 1 else None
    measured = f"{mean:.{digits}f} ({turns}{more and '; '}{more})"
    return Line(
        what, asked, measured, met, {"value": mean, "interval": (low, high) if found else None, "ratios": ratios, **raw}
    )


def spread(values: Iterable[float], digits: int = 3, more: str = "") -> str:
    """Write the median and the range of repeats, with `more` in their bracket."""
    known = list(values)
    return f"{median(known):.{digits}f} ({min(known):.{digits}f} to {max(known):.{digits}f}{more and '; '}{more})"


def make_parser(doc: str | None, quick: str, parts: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return a command line with --quick, and with --only where there are parts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the raw runs (default: benchmarks/results)"
    )
    if parts:
        parser.add_argument("--only", choices=parts, action="append", help="only this part; may be repeated")
    return parser


def run(
    parts: Mapping[str, Callable[[], Iterable[Line]]],
    options: argparse.Namespace,
    widths: tuple[int, int, int] = (58, 14, 46),
    *,
    is_whole: bool = True,
) -> int:
    """Measure parts, print the table and keep each part's raw run as soon as it is over; returns the exit status.

    SIGTERM ends it as an exception does. A part that is interrupted, or that options narrow (`is_whole` false), is not
    kept.
    """
    from harness.errors import HarnessError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")
    columns = " ".join(f"{{:<{width}}}" for width in widths) + " {}"
    print(columns.format("demand", "asked", "measured", "verdict"), flush=True)
    benchmark, short = Path(sys.argv[0]).stem, 0
    try:
        for name in getattr(options, "only", None) or parts:
            run_facts, began = describe_run(vars(options)), time.monotonic()
            lines = list(_shown(parts[name](), columns))
            short += sum(line.met is False for line in lines)
            seconds = round(time.monotonic() - began, 1)
            part = run_facts | {"seconds": seconds, "lines": [asdict(line) for line in lines]}
            if is_whole:
                save_part(options.results, benchmark, tuple(parts), name, part)
    except HarnessError as error:
        print(f"benchmarks/{benchmark}.py: {error}", file=sys.stderr)
        return error.exit_status
    return 1 if short else 0


def _shown(lines: Iterable[Line], columns: str) -> Iterator[Line]:
    """Print each line as soon as it is measured."""
    for line in lines:
        verdict = {None: "inconclusive" if line.asked else "", True: "met", False: "SHORT"}[line.met]
        print(columns.format(line.what, line.asked, line.measured, verdict).rstrip(), flush=True)
        yield line


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
