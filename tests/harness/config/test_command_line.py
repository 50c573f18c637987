"""What is typed becomes one config, composed once; `workload=` stands for the one workload of an experiment."""

import sys

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from harness.__main__ import main
from harness.config import command_line
from harness.errors import ConfigError

OTHER = ["~workloads.resnet50", "+workload@workloads.vgg19=vgg19"]


def expand(*argv: str) -> list[str]:
    return command_line.expand(command_line.split(argv))


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["repeats=2"], ["repeats=2"]),
        (["workload.batch_size=8"], ["workloads.resnet50.batch_size=8"]),
        (["+workload.x=1"], ["+workloads.resnet50.x=1"]),
        (["++workload.x=1"], ["++workloads.resnet50.x=1"]),
        (["workload=resnet50"], []),
        (["workload=vgg19", "workload.batch_size=8"], [*OTHER, "workloads.vgg19.batch_size=8"]),
        (["-m", "workload.batch_size=8,16", "seed=1,2"], ["seed=1,2", "workloads.resnet50.batch_size=8,16"]),
    ],
)
def test_the_workload_of_an_experiment_is_written_out(given, written):
    assert expand("+experiment=wan30ms", *given) == ["+experiment=wan30ms", *written]


@pytest.mark.parametrize("option", [["--config-dir", "{}"], ["--config-dir={}"]])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("defaults:\n  - /workload@workloads.vgg19: vgg19\nname: mine\n", "vgg19"),
        ("name: mine\nworkloads:\n  own: {_target_: mine.Own, width: 1}\n", "own"),
    ],
)
def test_an_experiment_in_a_folder_of_one_s_own_has_the_shorthand_too(tmp_path, option, text, key):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    given = [part.format(tmp_path) for part in option]
    expanded = expand(*given, "+experiment=mine", "workload.width=0.5", "~figures")
    assert expanded == ["+experiment=mine", "~figures", f"workloads.{key}.width=0.5"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["workload=resnet50"], r"\+experiment="),
        (["--config-dir", "/nowhere", "workload.x=1"], "/nowhere"),
        (["-m", "+experiment=smoke", "workload=vgg19,vit_b16"], r"\+workload@workloads.vgg19=vgg19"),
        (["+experiment=smoke", "--experiment=smoke"], "--experiment"),
        (["+experiment=smoke", "--multi-run"], "--multi-run"),
        (["+experiment=smoke", "-z"], "-z"),
        (["+experiment=smoke", "--cfg=everything"], "--cfg"),
    ],
)
def test_what_can_mean_nothing_is_refused(argv, words):
    with pytest.raises(ConfigError, match=words):
        expand(*argv)


@pytest.mark.parametrize("at", range(4))
def test_flags_may_stand_anywhere_among_the_overrides(at):
    argv = ["+experiment=smoke", "~loaders.dali", "repeats=1,2"]
    argv.insert(at, "-m")
    arguments = command_line.split(argv)
    assert arguments.flags == ("-m",) and arguments.needs_hydra_main
    assert arguments.overrides == ("+experiment=smoke", "~loaders.dali", "repeats=1,2")
    arguments = command_line.split(["+experiment=smoke", "--cfg", "job", "seed=1"])
    assert (arguments.flags, arguments.overrides) == (("--cfg", "job"), ("+experiment=smoke", "seed=1"))


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What a command line starts, in the place of the run itself: experiments and commands."""
    found = []

    def run(experiment, cfg, progress, command, on_folder, **_):
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
def test_a_run_composes_its_config_once(started, short, monkeypatch):
    composed = []
    load = ConfigLoaderImpl.load_configuration

    def count(self, config_name, overrides, *args, **kwargs):
        composed.append(list(overrides))
        return load(self, config_name, overrides, *args, **kwargs)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", count)
    command_line._compose_choices.cache_clear()
    ((experiment, command),) = started("+experiment=smoke", *short)
    assert len(composed) == 1
    if short:
        (workload,) = experiment.workloads.values()
        assert workload.params["batch_size"] == 8
        assert f"workloads.{workload.key}.batch_size=8" in command


@pytest.mark.process
def test_a_sweep_runs_one_job_for_each_combination(started):
    found = started("--multirun", "+experiment=smoke", "workload.batch_size=8,16", "seed=1,2")
    sizes = [(one.workloads["resnet50"].params["batch_size"], one.seed) for one, _ in found]
    assert sizes == [(8, 1), (16, 1), (8, 2), (16, 2)]
