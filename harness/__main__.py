"""The command line: Hydra composes the experiment, the harness runs it, the terminal shows what came out."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from harness.config import list_packaged
from harness.config.command_line import Arguments, compose_config, expand, split
from harness.config.hydra_errors import to_config_error
from harness.config.sweep import SweepFolder, SweepJob, read_jobs, run_elsewhere, tell_launcher
from harness.errors import (
    BROKEN_FIGURE,
    INVALID_ROWS,
    CellError,
    ConfigError,
    DiskError,
    HarnessError,
    ResultsError,
    TestbedError,
)
from harness.system.disk import check_writable, disk_errors, folder_of
from harness.system.program import run_program
from joulefeed.signals import Interrupted, interrupted

if TYPE_CHECKING:  # pydantic's models are for the commands that run something
    from harness.config.specs import Experiment
    from harness.report import Rendered, Report
    from harness.run.again import Groups

_USAGE = """\
joulefeed: what it takes, in seconds and joules, to feed an accelerator

  python -m harness +experiment=NAME [key=value ...]

experiments
{experiments}

change any part of one
  loaders.pytorch.num_workers=8     a loader's argument
  regimes.wan_30ms.rtt_ms=80        a regime
  ~loaders.dali                     leave a loader out
  +regime@regimes.lan_10ms=lan_10ms add a regime
  workload=resnet50                 another workload, where the experiment has one
  workload.batch_size=64            its argument
  dataset=synthetic_2mb             another dataset; dataset.root=/data/imagenet/train reads a real tree
  accelerator=cpu                   auto | cuda | cpu | emulated (always labelled) | none
  scale=full                        the paper's size, where the experiment has two
  repeats=5 epochs=2 seed=1

groups
{groups}

more
  resume=latest                     run what is missing of a run (a folder's name works too)
  resume=latest resume_invalid=true measure the cells with invalid rows again, too
  resume=latest resume_mixed=true   go on though machine, packages, code or environment differ; the rows are marked
  --multirun repeats=1,3 seed=0,1   one run for each combination, each in its results folder, and a table of all
  hydra/launcher=submitit_slurm     with --multirun: each of them a job of SLURM
  --cfg job                         print the composed config and stop
  --info defaults                   print where each part came from
  --hydra-help                      Hydra's own flags
  --version                         print joulefeed's version
  python -m harness.report FOLDER   draw the tables, figures and report again, without measuring
  python -m harness.compare A B     is run B slower than run A?
  python -m harness.validate FOLDER judge it again from its raw files, and say what differs; --write stores it
  python -m harness.testbed doctor  what this machine can do; `clean` removes what a dead run left
  python -m energymon doctor        its energy sensors

exit status
  0 every cell is done, no group lacks rows   4 the testbed failed
  2 a wrong key, value, dataset or folder     5 a disk is full or cannot be written
  3 a cell failed; the others are done        6 every cell is done, a group has no valid row
  7 a figure cannot be drawn                  128 + N ended by signal N
  of a --multirun: the status of its worst job
"""


def main() -> int:
    """Run `python -m harness`; returns the exit status."""
    argv = sys.argv[1:]
    if not argv or "--help" in argv or "-h" in argv:
        print(_usage())
        return 0 if argv else 2
    try:
        arguments = split(argv)
        overrides = expand(arguments)
        if arguments.needs_hydra_main:
            return _run_hydra_main(arguments, overrides)
        job = _job(compose_config("config", overrides, arguments.folder), tuple(overrides))
        tell_launcher(job)
        return job.status
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _usage() -> str:
    experiments = {
        name: yaml.safe_load(path.read_text()).get("description", "")
        for name, path in list_packaged("experiment").items()
    }
    # The last three are no part of a config.
    hidden = {"experiment", "claims", "figure", "papers"}
    folders = sorted(p.name for p in resources.files("conf").iterdir() if p.is_dir() and not p.name.startswith("_"))
    groups = {name: ", ".join(list_packaged(name)) for name in folders if name not in hidden}
    return _USAGE.format(experiments=_columns(experiments), groups=_columns(groups))


def _columns(texts: Mapping[str, str]) -> str:
    width = max(map(len, texts))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())


def _run_hydra_main(arguments: Arguments, overrides: list[str]) -> int:
    """Have Hydra compose and run the jobs of a sweep, or show what a flag asks for; returns the exit status."""
    jobs: list[SweepJob] = []
    is_sweep = arguments.read.multirun
    launchers = [one.partition("=")[2] for one in overrides if one.startswith("hydra/launcher=")]
    is_here, configs = launchers in ([], ["basic"]), arguments.folder
    sys.argv[1:] = [*arguments.flags, *overrides]
    # Hydra prints what is wrong with an override in its own way otherwise.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if is_sweep and is_here:
        # Before the first job, because this process starts again where it needs a user namespace.
        _enter_user_namespace()

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    def run_job(cfg: DictConfig) -> None:
        job, task = HydraConfig.get().job, tuple(HydraConfig.get().overrides.task)
        if cfg.resume is not None:
            raise ConfigError(f"resume={cfg.resume}: goes on with one run; leave --multirun out")
        if not is_here:
            return run_elsewhere(task, configs, Path(HydraConfig.get().sweep.dir), job.num)
        title = f"job {job.num + 1}: {' '.join(task)}"
        Console(stderr=True).print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
        jobs.append(_job(cfg, task))
        if jobs[-1].was_interrupted:
            sys.exit(jobs[-1].status)
        return None

    try:
        run_job()
    except (HydraException, OmegaConfBaseException) as error:
        raise to_config_error(error) from error
    except RuntimeError as error:
        if is_here:
            raise
        raise TestbedError(f"hydra/launcher={launchers[-1]}: {error}") from error
    finally:
        if not is_here and SweepFolder.path is not None:
            jobs += read_jobs(SweepFolder.path)
        if is_sweep and jobs:
            from harness.report import print_jobs

            print_jobs(jobs, Console())
            folders = [job.folder for job in jobs if job.folder is not None and job.status in (0, INVALID_ROWS)]
            if len(folders) > 1:
                from harness.compare.show import print_jobs_compared

                print_jobs_compared(folders, Console())
    # There is no job where a flag only shows something.
    return max((job.status for job in jobs), default=0, key=_severity)


def _severity(status: int) -> int:
    """Order exit statuses: rows that are invalid and figures that are missing are better than any error."""
    mild = (0, BROKEN_FIGURE, INVALID_ROWS)
    return mild.index(status) if status in mild else len(mild) + status


def _job(cfg: DictConfig, overrides: tuple[str, ...]) -> SweepJob:
    """Run one experiment; whatever ends it is said, and is in the status."""
    console = Console(stderr=True)
    folders: list[Path] = []
    said = ""
    try:
        where = {key: folder_of(key, cfg[key]) for key in ("results_dir", "cache_dir")}
        check_writable("results_dir", where["results_dir"])
        with disk_errors(where):
            status = _run(_stored_if_resumed_alone(cfg, overrides), overrides, console, folders.append)
    except Interrupted as error:
        said, status = str(error), error.exit_status
        text = f"{error}; {_how_to_go_on(cfg, folders)}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    except HarnessError as error:
        said, status = str(error), error.exit_status
        if (interrupt := interrupted()) is not None:  # the error is of the clean-up after it, or a library's own
            said, status = f"{interrupt}; {error}", interrupt.exit_status
        hint = f"; {_how_to_go_on(cfg, folders)}" if isinstance(error, DiskError) else ""
        console.print(f"error: {said}{hint}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()
    return SweepJob(overrides, folders[-1] if folders else None, status, said)


def _run(cfg: DictConfig, overrides: Sequence[str], console: Console, on_folder: Callable[[Path], None]) -> int:
    from harness.config.experiment import experiment_from
    from harness.run.progress import RunProgress

    experiment = experiment_from(cfg)
    needs_link = experiment.testbed.kind == "netns" or any(not r.is_local for r in experiment.regimes.values())
    if needs_link and experiment.testbed.kind not in ("local", "ssh"):
        _make_environments_before(experiment)
        _enter_user_namespace()
    from harness.report import check_figures
    from harness.run.driver import measure
    from harness.run.hosts.controller import run_on_hosts

    try:
        check_figures(experiment.figures)
    except ResultsError as error:
        raise ConfigError(str(error)) from error
    with RunProgress(console) as progress:
        command = shlex.join(["python", "-m", "harness", *overrides])
        if experiment.testbed.kind == "ssh":
            outcome = run_on_hosts(experiment, cfg, progress, command, on_folder, _report_on)
        else:
            outcome = _report_on(*measure(experiment, cfg, progress, command, on_folder, on_round=_report_on))
    _show(outcome, console, _resume_command(cfg, outcome.folder))
    if outcome.failed:
        return CellError.exit_status
    return INVALID_ROWS if outcome.groups.empty else BROKEN_FIGURE if outcome.rendered.broken else 0


@dataclass(frozen=True, slots=True)
class _RunEnd:
    """A run that has ended, and its report."""

    folder: Path
    failed: int
    """Cells without a result."""
    report: Report
    rendered: Rendered

    @property
    def invalid(self) -> int:
        """Rows that a validity rule refuses."""
        return sum(not row.is_valid for row in self.report.results.rows)

    @property
    def groups(self) -> Groups:
        """Which loaders lack valid rows, and where."""
        from harness.run.again import find_poor_groups

        return find_poor_groups(self.report.results.rows)


def _report_on(folder: Path, failed: int) -> _RunEnd:
    from harness.report import read_report, render

    report = read_report(folder)
    return _RunEnd(folder, failed, report, render(report))


def _show(outcome: _RunEnd, console: Console, again: str) -> None:
    """Print the table of a run, where its report is, and what to do about cells, rows and figures that are missing."""
    from harness.report import print_report
    from harness.results.folder import RunFolder
    from harness.run.again import describe_run

    print_report(outcome.report, Console())
    console.print(f"\nreport: {outcome.folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    redraw = shlex.join(["python", "-m", "harness.report", str(outcome.folder)])
    lines = [f"{figure.text}; draw it again with: {redraw}" for figure in outcome.rendered.broken]
    if outcome.failed:
        lines.append(f"{outcome.failed} cells failed; try them again with: {again}")
    for line in lines:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if outcome.invalid:
        groups, rows = outcome.groups, f"{outcome.invalid} of {len(outcome.report.results.rows)} rows"
        lines = describe_run(RunFolder(outcome.folder), outcome.report.results.experiment.checks)
        lines += [f"no row is valid of {group}" for group in groups.empty]
        lines += [f"one row alone is valid of {group}: it has no interval" for group in groups.thin]
        lines.append(f"{rows} are invalid; measure them again with: {again} resume_invalid=true")
        style = "red" if groups.empty else "yellow"
        for line in lines:
            console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _enter_user_namespace() -> None:
    """Start this program again as root of a user namespace, where it needs that."""
    from harness.testbed.unprivileged import reexec_unprivileged

    reexec_unprivileged([sys.executable, "-m", "harness", *sys.argv[1:]])


def _make_environments_before(experiment: Experiment) -> None:
    """Make the environments of an experiment that a user namespace, which has no network, could not make."""
    from harness.run.prepare import make_environments
    from harness.testbed.unprivileged import namespace_obstacles

    if namespace_obstacles():
        make_environments(experiment, lambda text: print(text, file=sys.stderr))


def _stored_if_resumed_alone(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """With `resume=` as the only override, take the run's own config."""
    own = ("resume", "resume_invalid", "resume_mixed", "results_dir", "cache_dir")
    given = [override.lstrip("+").partition("=")[0] for override in overrides]
    if cfg.resume is None or not set(given) <= set(own):
        return cfg
    from harness.results.folder import RunFolder

    stored = RunFolder.find(str(cfg.resume), Path(cfg.results_dir)).read_config()
    for key in own:
        if key.startswith("resume") or key in given:
            stored[key] = cfg[key]
    return stored


def _how_to_go_on(cfg: DictConfig, folders: list[Path]) -> str:
    if not folders:
        return "nothing was measured yet"
    invalid = " resume_invalid=true" if cfg.get("resume_invalid") else ""
    return f"the measured cells are kept. Go on with: {_resume_command(cfg, folders[-1])}{invalid}"


def _resume_command(cfg: DictConfig, folder: Path) -> str:
    from harness.results.folder import format_resume_command

    mixed = " resume_mixed=true" if cfg.get("resume_mixed") else ""
    return format_resume_command(folder, str(cfg.results_dir)) + mixed


if __name__ == "__main__":
    run_program(main)
