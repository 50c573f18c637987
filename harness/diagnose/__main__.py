"""`python -m harness.diagnose`: measure, store, show."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from harness.config import list_packaged
from harness.errors import CellError, HarnessError
from harness.system.disk import check_writable, disk_errors
from harness.system.program import run_program
from joulefeed.signals import signals_held
from loaders.errors import LoaderError

_USAGE = """\
joulefeed diagnose: which stage starves the accelerator, and what to change

  python -m harness.diagnose [workload=NAME] [key=value ...]

It measures loading without training (t_load) and training on one cached batch (t_compute), times every stage, trains
with more and more workers, and compares the knee with t_load / t_compute. It measures for about two minutes
(diagnose.budget_s); making the dataset the first time takes longer.

change any part
  workload=resnet50                  the model to train ({workloads})
  workload.batch_size=64             its argument
  dataset=NAME                       another dataset than the workload's ({datasets});
                                     dataset.root=/data/imagenet/train reads a real tree
  loader=pytorch                     what loads it ({loaders})
  loader.prefetch_factor=4           its argument
  --config-dir=my_conf               where the YAML of a workload of your own is (docs/workloads.md)
  accelerator=auto                   auto | cuda | cpu | emulated (always labelled)
  'diagnose.workers=[1,2,4]'         numbers of workers
  diagnose.budget_s=60               seconds of measuring
  results_dir=results                where the folder with diagnosis.json, diagnose.png and diagnose.svg is made
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m harness.diagnose`; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "--help" in given or "-h" in given:
        print(_usage())
        return 0
    console = Console(stderr=True)
    try:
        _diagnose(given, console)
    except HarnessError as error:
        return _failed(console, str(error), error.exit_status)
    except LoaderError as error:
        return _failed(console, str(error), CellError.exit_status)
    return 0


def _diagnose(argv: Sequence[str], console: Console) -> None:
    """Measure, then write the folder and print the tables."""
    from harness.diagnose.request import make_request

    request = make_request(argv)
    from harness.diagnose.figure import draw
    from harness.diagnose.run import diagnose
    from harness.diagnose.table import print_diagnosis
    from harness.diagnose.verdict import judge
    from harness.report.figures.style import save, use_house_style
    from harness.results.folder import make_folder
    from harness.run.progress import RunProgress

    where = {"results_dir": request.results_dir, "cache_dir": request.cache}
    check_writable("results_dir", request.results_dir)
    with disk_errors(where):
        with RunProgress(console, has_thread=False) as progress:
            measured = diagnose(request, progress)
        with signals_held():
            folder = make_folder(request.results_dir, f"diagnose_{request.workload.key}")
            measured.write(folder)
            verdict, shown = judge(measured), Console()
            print_diagnosis(measured, verdict, shown)
            with use_house_style("diagnose"):
                png, _ = save(draw(measured, verdict), folder / "diagnose")
            shown.print(f"\nfigure: {png}", highlight=False, markup=False, soft_wrap=True)


def _failed(console: Console, text: str, status: int) -> int:
    console.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    return status


def _usage() -> str:
    return _USAGE.format(
        **{f"{group}s": ", ".join(list_packaged(group)) for group in ("workload", "dataset", "loader")}
    )


if __name__ == "__main__":
    run_program(main)
