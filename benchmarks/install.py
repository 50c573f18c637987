"""What the package and each of its extras take in an empty environment, and whether what they bring runs there.

The base is installed by pip, as `pip install joulefeed` does; extras by uv, whose cache is warm after the first time.
Megabytes are of all files of the environment, byte code and pip included. Of the extras that bring a loader of files or
a stream, a run with that loader alone follows; of the others, what needs their packages is imported.

Then the first ten minutes of a new user, by pip and without its cache: joules of a command, a table of two loaders,
advice on a script of their own, and a page to send, each by the time since the first command.

Prints a line per demand (asked, measured, verdict); exits 1 when one falls short. `--only dali` has one extra alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import REPO, Line, at_most, make_parser, run

LOADERS = {"torch": "pytorch", "dali": "dali", "spdl": "spdl", "streaming": "streaming"}
"""The loader that an extra runs, by extra."""
IMPORTS = {
    "decord": ("loaders.decord", "decord"),
    "nosql": ("loaders.nosql.loader", "cassandra.cluster"),
    "cluster": ("ansible_runner", "hydra_plugins.hydra_submitit_launcher.submitit_launcher"),
    "influx": ("energymon.influx.client", "influxdb_client"),
    "prometheus": ("energymon.agent.prometheus", "prometheus_client"),
}
"""What needs the packages of an extra, by extra."""
MOST_BASE_MB, MOST_BASE_S, MOST_HELP_S, MOST_DOCTOR_S, MOST_JOULES_S = 300, 60, 0.5, 2, 60
TRAIN = """
import torch

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        return torch.randn(300, 300).svd().S

if __name__ == "__main__":
    for epoch in range(3):
        for batch in torch.utils.data.DataLoader(Pictures(), batch_size=16, shuffle=True, num_workers=1):
            (batch @ batch.T).sum()
"""
"""A script of a user's own, whose one worker has more to do than its step."""
UV = shutil.which("uv") or str(REPO / ".venv-uv/bin/uv")


def main() -> int:
    """Measure the base and each extra; 0 when all demands are met."""
    options = make_parser(__doc__, "the same", ("base", *LOADERS, *IMPORTS, "minutes")).parse_args()
    parts = {name: partial(measure_extra, name) for name in (*LOADERS, *IMPORTS)}
    return run({"base": measure_base, **parts, "minutes": measure_minutes}, options)


def measure_base() -> Iterator[Line]:
    """Install the package without an extra, and time its first commands."""
    with empty_folder() as folder:
        python, began = folder / "venv/bin/python", time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        installed_s = install([str(python), "-m", "pip", "install", "--quiet"], "")
        yield at_most("base: installed by pip", MOST_BASE_S, installed_s, f"{installed_s:.1f} s", "d")
        yield at_most("base: environment", MOST_BASE_MB, size := measure_mb(folder / "venv"), f"{size:.0f} MB", "d")
        for what, most, words in (
            ("joulefeed --help", MOST_HELP_S, ["--help"]),
            ("joulefeed doctor", MOST_DOCTOR_S, ["doctor"]),
            ("joules of a command", None, ["energy", "exec", "--", "sleep", "1"]),
        ):
            before = time.monotonic()
            status = start(folder, "joulefeed", *words).returncode
            took_s = time.monotonic() - before
            assert status in (0, 1), f"{what}: exit status {status}"  # doctor says by 1 what cannot be measured
            yield at_most(f"base: {what}", most, took_s, f"{took_s:.2f} s", "g")
        since_s = time.monotonic() - began
        yield at_most("base: joules of a command since the install", MOST_JOULES_S, since_s, f"{since_s:.1f} s", "d")


def measure_extra(extra: str) -> Iterator[Line]:
    """Install an extra, and run what it brings."""
    with empty_folder() as folder:
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
        pip = [UV, "pip", "install", "--quiet", "--python", str(folder / "venv/bin/python")]
        installed_s = install([*pip, "--constraint", str(REPO / "requirements.lock")], f"[{extra}]")
        size = measure_mb(folder / "venv")
        yield at_most(f"[{extra}]: environment", None, size, f"{size:.0f} MB, installed in {installed_s:.1f} s")
        if extra in LOADERS:
            what, program, words = f"a run with {LOADERS[extra]}", "joulefeed", run_alone(LOADERS[extra], folder)
        else:
            what = f"import {', '.join(IMPORTS[extra])}"
            program, words = "python", ["-c", what]
        began = time.monotonic()
        done = start(folder, program, *words)
        told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        measured = f"{time.monotonic() - began:.1f} s" if not done.returncode else f"status {done.returncode}: {told}"
        yield Line(f"[{extra}]: {what}", "runs", measured, not done.returncode)


def measure_minutes() -> Iterator[Line]:
    """Do what a new user does first, in an empty folder."""
    with empty_folder() as folder:
        began = time.monotonic()
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]

        def line(what: str, most: float, done: subprocess.CompletedProcess[bytes], also: int = 0) -> Line:
            since_s = time.monotonic() - began
            assert done.returncode in (0, also), f"{what}: exit status {done.returncode}"
            return at_most(f"minutes: {what}", most, since_s, f"{since_s:.0f} s", "g")

        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        install(pip, "")
        yield line("pip install joulefeed, joulefeed doctor", 30, start(folder, "joulefeed", "doctor"), also=1)
        yield line("joules of a command", 60, start(folder, "joulefeed", "energy", "exec", "--", "sleep", "1"))
        install(pip, "[dali]")
        smoke = ["run", "+experiment=smoke", "~loaders.streaming", f"cache_dir={folder}/cache"]
        yield line(
            "pip install joulefeed[dali], a table of two loaders", 180, start(folder, "joulefeed", *smoke), also=6
        )
        (folder / "train.py").write_text(TRAIN)
        advised = start(folder, "joulefeed", "advise", "--script", "train.py")
        yield line("advice on a script of one's own", 300, advised, also=3)
        drawn = start(folder, "joulefeed", "report", "results/latest")
        yield line("a page to send", 600, drawn)
        assert (folder / "results/latest/report.html").exists()


def run_alone(loader: str, folder: Path) -> Sequence[str]:
    """Return the words of a smoke run with one loader."""
    smoke = ("pytorch", "dali", "streaming")
    others = [f"~loaders.{name}" for name in smoke if name != loader]
    own = [] if loader in smoke else [f"+loader@loaders.{loader}={loader}"]
    places = [f"results_dir={folder}/results", f"cache_dir={folder}/cache"]
    return ["run", "+experiment=smoke", "repeats=1", "figures=[]", *others, *own, *places]


def install(pip: Sequence[str], extra: str) -> float:
    """Install this checkout's wheel; returns the seconds that it took."""
    wheel = subprocess.run(
        ["sh", REPO / "playbooks/wheel.sh"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    began = time.monotonic()
    subprocess.run([*pip, f"joulefeed{extra} @ file://{wheel}"], check=True)
    return time.monotonic() - began


def measure_mb(folder: Path) -> float:
    """Return the size of a folder's files."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def start(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program of the environment in `folder` to its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [folder / "venv/bin" / program, *words], cwd=folder, env=own, capture_output=True, check=False
    )


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Return a folder with a blank in its name."""
    with tempfile.TemporaryDirectory(prefix="joulefeed install ") as name:
        yield Path(name)


if __name__ == "__main__":
    sys.exit(main())
