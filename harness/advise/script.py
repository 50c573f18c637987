"""Advises on the DataLoader of a user's own script, by running the script for some batches with other settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import energymon
from harness.advise.model import Findings, Place, ProbedEpoch
from harness.advise.question import AdviseOptions, Choice, write_arguments
from harness.diagnose.diagnosis import Stage
from harness.errors import CellError, ConfigError
from joulefeed.child import Child, ChildError

_BATCHES: Final = 60
_MOST_S: Final = 6.0
_START_S: Final = 300.0
"""Within this a script has to come to its batches."""
_CONTENDERS: Final = 2
_OTHER_CPUS: Final = 0.5
"""Processors that other programs may use in a probe."""
_LOADER: Final = "pytorch"
_STAGES: Final = {"augment": "the dataset's computing", "read": "the dataset's waiting", "collate": "collate"}
"""Names of the kinds of stages."""
_BESIDE: Final = {"prefetch_factor": 2, "persistent_workers": True}
"""What workers get that the script does not have."""


class ScriptProber:
    """Runs a script again and again, each time for some batches."""

    def __init__(self, script: Path, arguments: Sequence[str], options: AdviseOptions, command: str) -> None:
        """Take what to run; raises ConfigError where there is no script."""
        if not script.is_file():
            raise ConfigError(f"--script {script}: there is no such file; expected a training script in Python")
        self._script, self._arguments, self._options, self._command = script, list(arguments), options, command
        self._place: str | None = None
        self._steps_s: dict[str, list[float]] = {}
        self._took_s = 0.0

    def run(self) -> Findings:
        """Probe; raises CellError where the script fails, or brings no batch of a DataLoader in time."""
        began = time.monotonic()
        agent = energymon.Agent(estimate="missing")
        with tempfile.TemporaryDirectory(prefix="joulefeed-advise-") as name, agent:
            folder = Path(name)
            first = self._measure(folder, agent, {})
            if first["others_cpus"] > _OTHER_CPUS:
                # It may have been something that ends.
                first = self._measure(folder, agent, {})
            self._place = first["place"]
            own = Choice(_LOADER, {"num_workers": first["arguments"]["num_workers"]})
            cores = len(os.sched_getaffinity(0))
            place = Place(cores, None, rtt_s=0.0, batches=first["epoch"], step_s=fmean(first["steps_s"]))
            found = Findings(
                subject=self._script.name,
                in_use=own,
                place=place,
                objective=self._options.objective,
                command=self._command,
                paste=lambda choice: [
                    f"torch.utils.data.DataLoader(...{write_arguments({**choice.arguments, **_BESIDE})})"
                ],
                max_rss_gb=self._options.max_rss_gb,
            )
            found.stages = tuple(Stage(_STAGES[kind], kind, s, None, None) for kind, s in first["stages"].items())
            self._take(found, own, first)
            deadline = began + self._options.budget_s
            # What a second round suggests follows from the first one's probes.
            for _ in range(2):
                for choice in found.derive(lambda _: "num_workers"):
                    self._probe(found, choice, folder, agent, deadline)
            while found.decide() != "cannot say" and len(contenders := found.contenders(_CONTENDERS)) > 1:
                left = [self._probe(found, one, folder, agent, deadline) for one in contenders]
                if not all(left):
                    break
        found.seconds = time.monotonic() - began
        return found

    def _probe(self, found: Findings, choice: Choice, folder: Path, agent: energymon.Agent, deadline: float) -> bool:
        """Probe a choice where there is time; return whether there was."""
        if time.monotonic() + self._took_s > deadline:
            return False
        given = {} if choice == found.in_use else {**choice.arguments, **_BESIDE}
        self._take(found, choice, self._measure(folder, agent, given))
        return True

    def _measure(self, folder: Path, agent: energymon.Agent, arguments: Mapping[str, object]) -> dict[str, Any]:
        began = time.monotonic()
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        spec = {
            "out": str(report),
            "place": self._place,
            "arguments": {**arguments},
            "batches": _BATCHES,
            "most_s": _MOST_S,
        }
        argv = [sys.executable, "-m", "harness.advise.watched", json.dumps(spec), str(self._script), *self._arguments]
        here = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "ENERGYMON_STORE": str(agent.store)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
        null = subprocess.DEVNULL
        child = Child(argv, env=environment, stdin=null, stdout=null, keep_stderr=True, group_killed_with_parent=True)
        with child:
            try:
                status = child.process.wait(_START_S)
            except (subprocess.TimeoutExpired, ChildError):
                raise CellError(
                    f"{self._script}: brought too few batches of a DataLoader within {_START_S:g} s"
                ) from None
            said = child.stderr_lines(3)
        if not report.exists():
            why = f"ended with status {status}: {said}" if status else "ended before enough batches of a DataLoader"
            raise CellError(f"{self._script}: {why}")
        seen: dict[str, Any] = json.loads(report.read_text())
        self._took_s = time.monotonic() - began
        return seen

    def _take(self, found: Findings, choice: Choice, seen: dict[str, Any]) -> None:
        if seen["others_cpus"] > _OTHER_CPUS:
            found.spoiled.setdefault(choice.key, f"other programs used {seen['others_cpus']:.1f} processors")
            return
        count = len(seen["steps_s"])
        step_s, wait_s = fmean(seen["steps_s"]), fmean(seen["waits_s"])
        self._steps_s.setdefault(choice.key, []).append(step_s)
        # Workers take processors from a step on the CPU: its own time is that with the least of them.
        found.place = replace(found.place, step_s=min(map(median, self._steps_s.values())))
        probe = ProbedEpoch(
            batches=count,
            epoch_s=count * (step_s + wait_s),
            first_s=0.0,
            cpu_s=seen["cpu_s"],
            rx_bytes=0.0,
            rss_bytes=seen["rss_bytes"],
            joules=seen["joules"],
            is_estimate=seen["is_estimate"],
        )
        found.take(choice, max(1, int(str(choice.arguments["num_workers"]))), [probe])
