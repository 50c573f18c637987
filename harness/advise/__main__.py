"""`python -m harness.advise`: which loader, which settings, and what that would bring."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from rich.console import Console

from energymon.errors import EnergyError
from harness.config import list_packaged
from harness.errors import CellError, ConfigError, HarnessError
from harness.system.disk import check_writable, disk_errors
from harness.system.program import run_program
from joulefeed.signals import signals_held
from loaders.errors import LoaderError

if TYPE_CHECKING:
    from harness.advise.model import Findings

_STATUS: Final = {"change": 0, "leave it": 3, "cannot say": 4}
_USAGE: Final = """\
joulefeed advise: which loader and which settings, in predicted seconds and joules

  python -m harness.advise [workload=NAME] [regime=NAME] [key=value ...]

It probes the loader in use, the bound of all loaders, and every other loader in short epochs, predicts an epoch of the
whole dataset, and measures the best ones again until the time is up. It ends in "change", "leave it" or "cannot say".

  workload=resnet50                  the model ({workloads})
  dataset=NAME dataset.root=DIR      the data ({datasets})
  regime=wan_30ms                    how far away it is ({regimes}); regimes.wan_30ms.rtt_ms=80 changes it
  loader=pytorch loader.num_workers=2   the loader in use now ({loaders})
  accelerator=auto accelerator.seconds_per_sample=0.001   the step
  objective=time                     time | joules | edp: seconds, joules, or their product
  order=exact                        only loaders that keep the epoch's order
  max_rss_gb=4                       only what fits into so much memory, GB
  loaders=[pytorch,dali]             which loaders are compared
  budget_s=180                       seconds of probing, set-up included
  --verify                           then measure the first one and the one in use on whole epochs, in turns

  python -m harness.advise --script train.py [objective=time] [budget_s=180] [-- ARGUMENT ...]

runs a script of your own for some batches at a time, with other settings of the DataLoader that it trains from, and
ends it each time: what it would do after these batches, such as to save a model, is not done.

exit status
  0 change   3 leave it   4 cannot say   2 a wrong key or value
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m harness.advise`; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    words, after = _split(given, "--")
    if not given or "--help" in words or "-h" in words:
        groups = {f"{group}s": ", ".join(list_packaged(group)) for group in ("workload", "dataset", "regime", "loader")}
        print(_USAGE.format(**groups))
        return 0 if given else ConfigError.exit_status
    errors = Console(stderr=True)
    try:
        return _advise_script(words, after, given) if "--script" in words else _advise(words, errors)
    except HarnessError as error:
        text, status = str(error), error.exit_status
    except (LoaderError, EnergyError) as error:
        text, status = str(error), CellError.exit_status
    errors.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    # 3 and 4 are advice.
    return ConfigError.exit_status if status in _STATUS.values() else status


def _split(words: Sequence[str], at: str) -> tuple[list[str], list[str]]:
    """Return the words before the first one of a kind, and those behind it."""
    place = words.index(at) if at in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def _advise(words: Sequence[str], errors: Console) -> int:
    from harness.advise.question import read_question
    from harness.testbed.unprivileged import reexec_unprivileged

    asked = [word for word in words if word != "--verify"]
    question = read_question(asked)
    if question.needs_link:
        reexec_unprivileged([sys.executable, "-m", "harness.advise", *words])
    from harness.advise.probe import Prober
    from harness.results.folder import make_folder
    from harness.run.progress import RunProgress

    check_writable("results_dir", question.results_dir)
    with disk_errors({"results_dir": question.results_dir, "cache_dir": question.cache}):
        folder = make_folder(question.results_dir, f"advise_{question.workload}")
        verified: Mapping[str, float] = {}
        with RunProgress(errors) as progress:
            prober = Prober(question, folder, progress)
            found = prober.run()
            if "--verify" in words and found.decide() != "cannot say":
                measured = prober.verify([*dict.fromkeys([found.ranked[0].choice, found.in_use])])
                verified = {key: median(each) for key, each in measured.items()}
        return _show(found, folder, verified)


def _advise_script(words: Sequence[str], after: Sequence[str], given: Sequence[str]) -> int:
    from harness.advise.question import read_options
    from harness.advise.script import ScriptProber
    from harness.results.folder import make_folder
    from harness.system.disk import folder_of

    before, rest = _split(words, "--script")
    if not rest:
        raise ConfigError("--script: expected the path of a training script behind it")
    options, left = read_options([*before, *rest[1:]])
    results_dir = folder_of("results_dir", left.pop("results_dir", "results"))
    if left or options.loaders or options.order != "any":
        raise ConfigError("--script: expected beside it objective, budget_s, max_rss_gb and results_dir alone")
    prober = ScriptProber(Path(rest[0]), after, options, shlex.join(["python", "-m", "harness.advise", *given]))
    check_writable("results_dir", results_dir)
    with disk_errors({"results_dir": results_dir}):
        found = prober.run()
        return _show(found, make_folder(results_dir, f"advise_{Path(rest[0]).stem}"), {})


def _show(found: Findings, folder: Path, verified: Mapping[str, float]) -> int:
    """Print the advice and store it; returns the exit status."""
    from harness.advise.show import describe_verified, draw, print_advice, to_json
    from harness.report.figures.style import save, use_house_style
    from harness.results.files import write_json

    shown, outcome = Console(), found.decide()
    print_advice(found, outcome, shown)
    lines = describe_verified(found, verified)
    with signals_held():
        write_json(folder / "advice.json", {**to_json(found, outcome), "verified_s": dict(verified)})
        if found.ranked:
            with use_house_style("advise"):
                png, _ = save(draw(found), folder / "advice")
            lines.append(f"figure: {png}")
    shown.print("\n".join(["", *lines]), highlight=False, markup=False, soft_wrap=True)
    return _STATUS[outcome]


if __name__ == "__main__":
    run_program(main)
