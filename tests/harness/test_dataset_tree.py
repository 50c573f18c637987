"""A dataset's YAML names the class that reads a real tree in its place."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from harness.config.experiment import experiment_from
from harness.errors import ConfigError

REAL = ["+dataset.root=/data/real", "+dataset.on_error=skip", "+dataset.limit=3", "dataset.seed=4"]
SHIPPED = {
    "imagenet_small": "harness.datasets.tree.ImageTree",
    "synthetic_2mb": "harness.datasets.tree.ImageTree",
    "kits19_small": "harness.datasets.kits19.tree.Kits19Tree",
}


def dataset(*overrides, **section):
    """The dataset of the smoke experiment, whose section is replaced where one is given."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", overrides=["+experiment=smoke", *overrides])
    if section:
        OmegaConf.set_struct(cfg, False)
        cfg.dataset = section
    (found,) = experiment_from(cfg).datasets.values()
    return found


@pytest.mark.parametrize(("name", "reader"), SHIPPED.items())
def test_a_shipped_dataset_with_a_root_is_read_by_its_own_adapter(name, reader):
    found = dataset(f"dataset={name}", *(override.lstrip("+") for override in REAL))
    assert (found.key, found.target) == ("tree", reader)
    assert found.params == {"name": "tree", "root": "/data/real", "on_error": "skip", "limit": 3, "seed": 4}


@pytest.mark.parametrize("name", SHIPPED)
def test_without_a_root_it_is_generated_and_never_hears_of_trees(name):
    found = dataset(f"dataset={name}")
    assert found.key == name
    assert not {"tree", "root", "on_error", "limit"} & set(found.params)


def test_an_adapter_has_keys_of_its_own():
    tree = {"_target_": "mine.Tree", "annotations": "val.json"}
    found = dataset(_target_="mine.Made", name="m", root="/data", tree=tree)
    assert found.target == "mine.Tree"
    assert (found.params["annotations"], found.params["root"], found.params["seed"]) == ("val.json", "/data", 0)


def test_a_dataset_without_an_adapter_keeps_its_root_to_itself():
    found = dataset(_target_="mine.Made", name="m", root="/data", limit=3)
    assert (found.key, found.target, found.params) == ("m", "mine.Made", {"name": "m", "root": "/data", "limit": 3})


def test_an_adapter_without_a_class_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"^dataset\.tree='mine\.Tree': .*_target_"):
        dataset(_target_="mine.Made", name="m", root="/data", tree="mine.Tree")


def test_assumed_steps_compose_as_a_number_or_by_workload():
    with initialize_config_module("conf", version_base="1.3"):
        for value, expected in (("0.02", 0.02), ("{rnnt: 0.02}", {"rnnt": 0.02})):
            override = f"accelerator.seconds_per_sample={value}"
            experiment = experiment_from(compose("config", overrides=["+experiment=smoke", override]))
            assert experiment.accelerator.seconds_per_sample == expected
