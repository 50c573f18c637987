"""`workload=` stands for the one workload of an experiment."""

import pytest

from harness.config import shorthand
from harness.errors import ConfigError


def expand(argv: list[str]) -> list[str]:
    return shorthand.expand(shorthand.split(argv))


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
    assert expanded == [*given, "+experiment=mine", "~figures", "workloads.vgg19.width=0.5"]


def test_a_folder_of_configs_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: expected a folder of configs"):
        expand(["--config-dir", str(tmp_path / "nowhere"), "workload.x=1"])


@pytest.mark.parametrize("at", range(4))
def test_flags_may_stand_anywhere_among_the_overrides(at):
    argv = ["+experiment=smoke", "~loaders.dali", "repeats=1,2"]
    argv.insert(at, "-m")
    assert expand(argv) == ["-m", "+experiment=smoke", "~loaders.dali", "repeats=1,2"]
    assert expand(["+experiment=smoke", "--cfg", "job", "seed=1"]) == ["--cfg", "job", "+experiment=smoke", "seed=1"]


def test_the_shorthand_may_be_swept():
    expanded = expand(["+experiment=smoke", "-m", "workload.batch_size=8,16", "seed=1,2"])
    assert expanded == ["-m", "+experiment=smoke", "seed=1,2", "workloads.resnet50.batch_size=8,16"]


def test_several_workloads_are_one_run_and_no_sweep():
    with pytest.raises(ConfigError, match=r"\+workload@workloads.vgg19=vgg19 .* '~workloads.resnet50'"):
        expand(["-m", "+experiment=smoke", "workload=vgg19,vit_b16"])


@pytest.mark.parametrize("flag", ["--experiment=smoke", "--multi-run", "-z", "--cfg=everything"])
def test_an_unknown_flag_is_named(flag):
    with pytest.raises(ConfigError, match=flag.partition("=")[0]):
        expand(["+experiment=smoke", flag])
