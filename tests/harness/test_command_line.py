"""What is typed becomes one config, composed once; `workload=` stands for the one workload of an experiment."""

import os
import sys

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from harness.cli import INHERITED, main
from harness.config import command_line
from harness.errors import ConfigError
from harness.testbed import unprivileged


def expand(argv: list[str]) -> list[str]:
    return command_line.expand(command_line.split(argv))


def test_arguments_without_the_shorthand_stay_as_they_are():
    assert expand(["+experiment=wan30ms", "repeats=2"]) == ["+experiment=wan30ms", "repeats=2"]


def test_an_argument_of_the_workload_is_written_out():
    assert expand(["+experiment=wan30ms", "workload.batch_size=8"])[-1] == "workloads.resnet50.batch_size=8"


def test_the_workload_it_already_has_changes_nothing():
    assert expand(["+experiment=wan30ms", "workload=resnet50"]) == ["+experiment=wan30ms"]


def test_another_workload_takes_its_place():
    expanded = expand(["+experiment=wan30ms", "workload=vgg19", "workload.batch_size=8"])
    assert expanded[1:] == [
        "~workloads.resnet50",
        "+workload@workloads.vgg19=vgg19",
        "workloads.vgg19.batch_size=8",
    ]


def test_without_an_experiment_it_says_what_to_do():
    with pytest.raises(ConfigError, match=r"\+experiment="):
        expand(["workload=resnet50"])


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_plus_stays_before_what_is_written_out(plus):
    assert expand(["+experiment=wan30ms", f"{plus}workload.x=1"])[-1] == f"{plus}workloads.resnet50.x=1"


@pytest.mark.parametrize("option", [["--config-dir", "{}"], ["--config-dir={}"]])
def test_an_experiment_in_a_folder_of_one_s_own_has_the_shorthand_too(tmp_path, option):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /workload@workloads.vgg19: vgg19\nname: mine\n"
    )
    given = [part.format(tmp_path) for part in option]
    expanded = expand([*given, "+experiment=mine", "workload.width=0.5", "~figures"])
    assert expanded == ["+experiment=mine", "~figures", "workloads.vgg19.width=0.5"]


def test_a_workload_that_the_experiment_writes_itself_has_the_shorthand_too(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nworkloads:\n  own: {_target_: mine.Own, width: 1}\n"
    )
    expanded = expand(["--config-dir", str(tmp_path), "+experiment=mine", "workload.width=0.5"])
    assert expanded == ["+experiment=mine", "workloads.own.width=0.5"]


@pytest.fixture
def composed(monkeypatch):
    """The overrides of every composition."""
    found = []
    load = ConfigLoaderImpl.load_configuration

    def count(self, config_name, overrides, *args, **kwargs):
        found.append(list(overrides))
        return load(self, config_name, overrides, *args, **kwargs)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", count)
    return found


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What a command line starts, in the place of the run itself: experiments and commands."""
    found = []

    def run(experiment, cfg, progress, command, on_folder):
        found.append((experiment, command))
        raise ConfigError("far enough")

    monkeypatch.setattr("harness.run.driver.measure", run)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # it is set, and unset again after the test

    def start(*argv):
        monkeypatch.setattr(sys, "argv", ["harness", *argv, f"results_dir={tmp_path}", f"cache_dir={tmp_path}"])
        assert main() == ConfigError.exit_status
        return found

    return start


@pytest.mark.parametrize("short", [[], ["workload.batch_size=8"], ["workload=vgg19", "workload.batch_size=8"]])
def test_a_run_composes_its_config_once(composed, started, short):
    ((experiment, command),) = started("+experiment=smoke", *short)
    assert len(composed) == 1
    if short:
        (workload,) = experiment.workloads.values()
        assert workload.batch_size == 8
        assert f"workloads.{workload.key}.batch_size=8" in command


def test_a_run_that_starts_again_in_a_user_namespace_takes_the_config_along(composed, started, monkeypatch):
    def start_again(argv):
        monkeypatch.setattr(unprivileged, "reexec_unprivileged", lambda argv: None)
        os.environ[INHERITED] = str(os.dup(int(os.environ[INHERITED])))  # another process has its own
        main()

    monkeypatch.setattr(unprivileged, "reexec_unprivileged", start_again)
    (inside, command), (outside, _) = started("+experiment=wan30ms", "workload.batch_size=8", "seed=7")
    assert len(composed) == 1
    assert inside == outside and inside.seed == 7
    assert "seed=7" in command


def test_a_sweep_runs_one_job_for_each_combination(started, monkeypatch):
    found = started("--multirun", "+experiment=smoke", "workload.batch_size=8,16", "seed=1,2")
    assert [(e.workloads["resnet50"].batch_size, e.seed) for e, _ in found] == [(8, 1), (16, 1), (8, 2), (16, 2)]


def test_a_folder_of_configs_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        expand(["--config-dir", str(tmp_path / "nowhere"), "workload.x=1"])


@pytest.mark.parametrize("at", range(4))
def test_flags_may_stand_anywhere_among_the_overrides(at):
    argv = ["+experiment=smoke", "~loaders.dali", "repeats=1,2"]
    argv.insert(at, "-m")
    arguments = command_line.split(argv)
    assert arguments.flags == ("-m",) and arguments.needs_hydra_main
    assert arguments.overrides == ("+experiment=smoke", "~loaders.dali", "repeats=1,2")
    arguments = command_line.split(["+experiment=smoke", "--cfg", "job", "seed=1"])
    assert (arguments.flags, arguments.overrides) == (("--cfg", "job"), ("+experiment=smoke", "seed=1"))


def test_the_shorthand_may_be_swept():
    expanded = expand(["+experiment=smoke", "-m", "workload.batch_size=8,16", "seed=1,2"])
    assert expanded == ["+experiment=smoke", "seed=1,2", "workloads.resnet50.batch_size=8,16"]


def test_several_workloads_are_one_run_and_no_sweep():
    with pytest.raises(ConfigError, match=r"\+workload@workloads.vgg19=vgg19 .* '~workloads.resnet50'"):
        expand(["-m", "+experiment=smoke", "workload=vgg19,vit_b16"])


@pytest.mark.parametrize("flag", ["--experiment=smoke", "--multi-run", "-z", "--cfg=everything"])
def test_an_unknown_flag_is_named(flag):
    with pytest.raises(ConfigError, match=flag.partition("=")[0]):
        expand(["+experiment=smoke", flag])
