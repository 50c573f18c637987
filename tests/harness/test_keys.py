"""A key that is not there is named with what there is, and with what was probably meant."""

import pytest
from hydra import compose, initialize_config_module

from harness.config.command_line import compose_config
from harness.config.experiment import experiment_from
from harness.errors import ConfigError
from harness.run.components import check_components


def refusal(*overrides):
    """Return what is said of overrides that cannot be."""
    with pytest.raises(ConfigError) as error:
        experiment_from(compose_config("config", ["+experiment=wan30ms", *overrides]))
    said = str(error.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("override", "key", "meant", "there"),
    [
        ("loaders.pytorch.num_wokers=2", "loaders.pytorch.num_wokers", "num_workers", "prefetch_factor"),
        ("loaders.pytroch.num_workers=2", "loaders.pytroch", "pytorch", "dali, fixed, pytorch, streaming"),
        ("loader.pytorch.num_workers=2", "loader", "loaders", "workloads"),
        ("repeat=2", "repeat", "repeats", "epochs"),
        ("+repeat=2", "repeat", "repeats", "epochs"),
        ("+workload.x=1", "workload", "workloads", "loaders"),
        ("workloads.resnet50.batchsize=2", "workloads.resnet50.batchsize", "batch_size", "image_size"),
        ("regimes.wan_30ms.rtt=2", "regimes.wan_30ms.rtt", "rtt_ms", "rate_gbit"),
        ("+regimes.wan_30ms.rtt=2", "regimes.wan_30ms.rtt", "rtt_ms", "rate_gbit"),
        ("+energy.intervall_ms=2", "energy.intervall_ms", "interval_ms", "sensors"),
        ("dataset.sample=2", "dataset.sample", "samples", "classes"),
        ("accelerator=cpuu", "accelerator=cpuu", "cpu", "emulated"),
        ("dataset=imagenet_smal", "dataset=imagenet_smal", "imagenet_small", "kits19_small"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_one_and_with_all_there_are(override, key, meant, there):
    said = refusal(override)
    assert said.startswith(f"{key}: ")
    assert f"(did you mean {meant}?)" in said
    assert there in said


def test_a_key_that_the_class_takes_and_the_config_does_not_set_is_added_with_a_plus():
    assert refusal("loaders.pytorch.pin_memory=false").endswith("+loaders.pytorch.pin_memory=VALUE")


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("nonsense", "expected key=value"),
        ("repeats = 3", "write it without spaces: repeats=3"),
        ("dataset.root=/data/a(b)", """quote the value: 'dataset.root="/data/a(b)"'"""),
        ("figures=[a,b", "close every bracket and quote"),
    ],
)
def test_what_cannot_be_read_as_an_override_is_named_with_how_to_write_it(override, advice):
    assert refusal(override).startswith(f"{override}: ")


def refused(*overrides):
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", overrides=["+experiment=smoke", "~loaders.dali", "~loaders.streaming", *overrides])
    experiment = experiment_from(cfg)
    with pytest.raises(ConfigError) as error:
        check_components(experiment)
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+loaders.pytorch.num_wokers=2", ["loaders.pytorch.num_wokers: ", "did you mean num_workers?"]),
        ("+loaders.pytorch.sweep={num_wokers: [1, 2]}", ["loaders.pytorch.sweep.num_wokers: ", "num_workers?"]),
        ("+loaders.pytorch.seed=3", ["loaders.pytorch.seed: is given by the harness"]),
        ("+workloads.resnet50.image_sise=64", ["workloads.resnet50.image_sise: ", "image_size?"]),
        ("+dataset.mean_kbs=3", ["dataset.mean_kbs: ", "mean_kb?"]),
        ("~workloads.resnet50.batch_size", ["harness.workloads.classification.ResNet50", "batch_size"]),
        ("workloads.resnet50._target_=loaders.pytorch.PyTorchLoader", ["is no workload: it lacks model, loss"]),
        (
            "workloads.resnet50._target_=harness.workloads.classification.Classification",
            ["workloads.resnet50._target_=", "is abstract and leaves out model"],
        ),
        ("loaders.pytorch._target_=harness.workloads.classification.ResNet50", ["is no loader: it lacks epoch"]),
        ("dataset._target_=loaders.pytorch.PyTorchLoader", ["is no dataset: it lacks open"]),
        ("+accelerator.seconds_per_sample={resnet5: 1}", ["seconds_per_sample.resnet5: ", "did you mean resnet50?"]),
        ("workloads.resnet50.batch_size=97", ["batch_size=97 is larger than the dataset (dataset.samples=96)"]),
        ("dataset._target_=harness.no_such.Thing", ["_target_=harness.no_such.Thing: cannot be imported"]),
    ],
)
def test_a_class_that_is_none_or_takes_no_such_key_is_refused_before_anything_starts(override, words):
    said = refused(override)
    for word in words:
        assert word in said
