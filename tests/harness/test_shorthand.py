"""`workload=` stands for the one workload of an experiment."""

import pytest

from harness.errors import ConfigError
from harness.shorthand import expand


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
