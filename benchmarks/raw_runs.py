"""Raw runs of the benchmarks in results/NAME.json: of each part the machine, the moment, and lines with their values.

A part that is measured again replaces its last run; the others stay. Runs with --quick are kept beside the full ones,
in results/NAME.quick.json.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parent / "results"
DIGITS: Final = 6
"""Significant digits of a raw value."""
_CODE: Final = ("harness", "energymon", "loaders", "joulefeed", "conf", "benchmarks/*.py", "benchmarks/truth")
"""Files whose changes are marked behind the commit, by a plus sign."""
_MACHINE: Final = ("cpu", "logical_cpus", "memory_gib", "os", "kernel", "governor", "gpus")

Part = dict[str, Any]
"""The run of a part: machine, moment, arguments, and `lines`."""


def describe_run(arguments: Mapping[str, object]) -> Part:
    """Return the facts of a run: date, machine, load, commit, arguments; without paths of the machine."""
    # Imported when a run is kept: rendering tables needs neither psutil nor the harness.
    from harness.results.provenance import describe_host

    host = {name: field["value"] for name, field in describe_host().items() if field["value"] is not None}
    is_virtual = "hypervisor" in Path("/proc/cpuinfo").read_text().split()
    return {
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=7", "HEAD") + ("+" if _git("status", "--porcelain", "--", *_CODE) else ""),
        "arguments": {name: value for name, value in arguments.items() if not isinstance(value, Path) and value},
        "quick": bool(arguments.get("quick")),
        "load": round(os.getloadavg()[0], 2),
        "machine": {
            **{name: host[name] for name in _MACHINE if name in host},
            "virtual": host.get("virtual_machine", "yes" if is_virtual else "no"),
        },
    }


def _git(*arguments: str) -> str:
    """Return what git prints; nothing where there is no git or no checkout."""
    argv = ["git", "-C", str(RESULTS.parents[1]), *arguments]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except FileNotFoundError:
        return ""


def save_part(folder: Path, benchmark: str, order: Sequence[str], name: str, part: Part) -> Path:
    """Store a part's run, whole or not at all; `order` names all parts of the benchmark. Returns the file."""
    path = folder / f"{benchmark}{'.quick' if part['quick'] else ''}.json"
    known = json.loads(path.read_text())["parts"] if path.is_file() else {}
    known[name] = part
    run = {
        "benchmark": benchmark,
        "order": list(order),
        "parts": {each: known[each] for each in order if each in known},
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(_plain(run), ensure_ascii=False, separators=(",", ":")) + "\n")
    partial.replace(path)
    return path


def load_parts(folder: Path, benchmark: str) -> dict[str, Part | None]:
    """Return the parts of a benchmark in their order: a full run before a quick one, None for one without a run."""
    runs = [json.loads(path.read_text()) for path in _paths(folder, benchmark) if path.is_file()]
    order = dict.fromkeys(name for run in runs for name in run["order"])
    return {name: next((run["parts"][name] for run in runs if name in run["parts"]), None) for name in order}


def _paths(folder: Path, benchmark: str) -> tuple[Path, Path]:
    return folder / f"{benchmark}.json", folder / f"{benchmark}.quick.json"


def _plain(value: object) -> object:
    """Return what JSON can say, with numbers rounded to DIGITS."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    number = float(f"{float(value):.{DIGITS}g}")  # type: ignore[arg-type]
    return number if math.isfinite(number) else None
