"""Which workloads a streaming loader can run is known before anything starts."""

import pytest
from hydra import compose, initialize_config_module

from harness.config.experiment import experiment_from
from harness.errors import ConfigError
from harness.run.check import check_components


def checked(*overrides):
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose(
            "config",
            overrides=["+experiment=smoke", "~loaders.dali", "~loaders.pytorch", "accelerator=cpu", *overrides],
        )
    experiment = experiment_from(cfg)
    check_components(experiment)
    return experiment


UNET = ("~workloads.resnet50", "+workload@workloads.unet3d=unet3d", "dataset=kits19_small")


def test_every_workload_is_streamed_by_default():
    for name, dataset in (("unet3d", "kits19_small"), ("mask_rcnn", "coco_small"), ("rnnt", "librispeech_small")):
        experiment = checked("~workloads.resnet50", f"+workload@workloads.{name}={name}", f"dataset={dataset}")
        assert list(experiment.workloads) == [name]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [*UNET, "loaders.streaming.decode=dali"],
            "loaders.streaming with workloads.unet3d: decode=dali",
        ),
        (["loaders.streaming.decode=other"], "loaders.streaming with workloads.resnet50: decode='other'"),
        (
            ["loaders.streaming.decode=dali", "+loaders.streaming.on_error=skip"],
            "on_error=skip",
        ),
    ],
)
def test_an_engine_that_cannot_run_a_workload_is_refused_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        checked(*overrides)
    assert "\n" not in str(caught.value)
