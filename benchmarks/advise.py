"""Advice against a grid that it has not seen: regret, error of predicted epochs, and what its 90 % intervals hold.

Each case is a workload at a distance. First `harness.advise` gives its advice; then every loader is measured with three
settings or more, twice, on epochs of the whole dataset. Regret is the time of the advised choice over the best of the
grid and of the advice's own. Prints a line per demand (asked, measured, verdict); exits 1 when one falls short.
`--quick` has one case. Needs what `python -m harness.testbed doctor` says for distances.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from bench import Line, at_most, make_parser, run
from rich.console import Console

from harness.advise.model import Findings
from harness.advise.probe import Prober
from harness.advise.question import Choice, read_question
from harness.run.progress import RunProgress

WORKLOADS = {"resnet50": [], "unet3d": [], "mask_rcnn": [], "speech_3s": []}
"""Those of the grid, with their overrides."""
REGIMES = {"local": (1, 2, 4), "lan_10ms": (4, 12, 32), "wan_30ms": (4, 16, 48)}
"""With the numbers of files that are read at once."""
BUDGET_S = 180


def main() -> int:
    """Measure and print; return the exit status."""
    cases = {f"{workload} {regime}": partial(measure, workload, regime) for workload in WORKLOADS for regime in REGIMES}
    options = make_parser(__doc__, "resnet50 on local files", cases).parse_args()
    if options.quick:
        options.only = options.only or ["resnet50 local"]
    return run(cases, options)


def measure(workload: str, regime: str) -> Iterator[Line]:
    """Have advice of a case, then measure its grid."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-advise-") as name:
        words = [f"workload={workload}", f"regime={regime}", "loader.num_workers=2", f"results_dir={name}"]
        question = read_question([*words, f"budget_s={BUDGET_S}", *WORKLOADS[workload]])
        with RunProgress(Console(stderr=True)) as progress:
            prober = Prober(question, Path(name), progress)
            found = prober.run()
            measured = prober.verify(list(grid(found, prober, REGIMES[regime])))
    yield from judge(workload, regime, found, measured)


def grid(found: Findings, prober: Prober, readers: Sequence[int]) -> Iterator[Choice]:
    """Yield the choices that were probed, and every loader with each number of readers."""
    chosen = {one.choice: None for one in found.ranked}
    for choice in prober.question.others:
        plain = Choice(choice.loader)
        key = prober.question.spec(plain).readers
        settings = [{key: number} for number in readers] if key else [{}, {"num_threads": 1}, {"num_threads": 3}]
        chosen |= dict.fromkeys(plain.but(**setting) for setting in settings)
    yield from chosen


def judge(workload: str, regime: str, found: Findings, measured: dict[str, float]) -> Iterator[Line]:
    """Yield the lines of a case."""
    name = f"{workload}, {regime}"
    advised = found.ranked[0].choice.key if found.decide() == "change" else found.in_use.key
    best = min(measured, key=measured.__getitem__)
    regret = measured[advised] / measured[best] - 1
    yield at_most(f"{name}: regret", 0.08, regret, f"{regret:.1%} ({advised}; best {best})", grid=measured)
    own = measured[advised] / measured[found.in_use.key] - 1
    yield at_most(f"{name}: over the loader in use", 0.02, own, f"{own:+.1%}")
    said = {one.choice.key: one.epoch_s(found.place, found.scatter) for one in found.ranked}
    errors = [abs(said[key].value / measured[key] - 1) for key in said if key in measured]
    held = [said[key].low <= measured[key] <= said[key].high for key in said if key in measured]
    many = f"{median(errors):.1%}, 95 % {np.quantile(errors, 0.95):.1%}"
    yield at_most(f"{name}: error of a predicted epoch", 0.07, median(errors), many, errors=errors)
    yield Line(f"{name}: 90 % intervals that hold the epoch", "", f"{sum(held)} of {len(held)}", raw={"held": held})
    yield at_most(f"{name}: seconds of probing", 190, found.seconds, f"{found.seconds:.0f}", ".0f")


if __name__ == "__main__":
    sys.exit(main())
