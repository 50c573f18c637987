"""One override takes an experiment to the paper's size; workloads may have datasets of their own."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import conf
from harness.config.experiment import config_hash, experiment_from
from harness.errors import ConfigError
from harness.run.check import check_components
from harness.run.plan import plan_cells

SIZED = sorted(
    path.stem for path in Path(conf.__file__).parent.glob("experiment/*.yaml") if "\nsizes:" in path.read_text()
)
OWN = (
    "+experiment=smoke",
    "~loaders.streaming",
    "+workload@workloads.two=resnet50",
    "+dataset@workloads.two.dataset=synthetic_2mb",
)


def composed(*overrides):
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_there_are_experiments_of_two_sizes():
    assert {"spdl_fig5", "spdl_table2"} <= set(SIZED)


@pytest.mark.parametrize("name", SIZED)
def test_every_size_is_a_valid_experiment_and_full_is_another_one(name):
    small, full = (composed(f"+experiment={name}", f"scale={scale}") for scale in ("small", "full"))
    assert experiment_from(small).datasets
    assert experiment_from(full).datasets
    assert config_hash(small) != config_hash(full)


def test_an_override_counts_at_either_size():
    for scale in ("small", "full"):
        experiment = experiment_from(composed("+experiment=spdl_fig5", f"scale={scale}", "dataset.samples=77"))
        assert experiment.datasets["resnet50"].params["samples"] == 77


def test_what_is_not_taken_from_the_sizes_does_not_change_the_hash():
    cfg = composed("+experiment=spdl_fig5")
    before = config_hash(cfg)
    OmegaConf.update(cfg, "sizes.full.samples", 5, force_add=True)
    assert config_hash(cfg) == before


@pytest.mark.parametrize(("scale", "told"), [("huge", "small, full"), ("full", "wan30ms")])
def test_a_scale_that_is_not_there_is_refused_by_name(scale, told):
    with pytest.raises(ConfigError, match=told):
        experiment_from(composed("+experiment=wan30ms", f"scale={scale}"))


def test_a_workload_is_trained_on_its_own_dataset_and_the_others_on_the_experiment_s():
    experiment = experiment_from(composed(*OWN))
    assert experiment.datasets["resnet50"].key == "imagenet_small"
    assert experiment.datasets["two"].key == "synthetic_2mb"
    assert "dataset" not in experiment.workloads["two"].params
    assert experiment.dataset_key("two") == "workloads.two.dataset"
    assert experiment.dataset_key("resnet50") == "dataset"


def test_a_cell_s_id_follows_its_own_dataset_alone():
    before = {cell.workload: cell.cell_id for cell in plan_cells(experiment_from(composed(*OWN)))}
    after = {
        c.workload: c.cell_id for c in plan_cells(experiment_from(composed(*OWN, "workloads.two.dataset.samples=9")))
    }
    assert before["resnet50"] == after["resnet50"]
    assert before["two"] != after["two"]


def test_a_wrong_value_of_a_workload_s_dataset_is_named_by_its_key():
    with pytest.raises(ConfigError, match=r"workloads\.two\.dataset\.samples"):
        check_components(experiment_from(composed(*OWN, "workloads.two.dataset.samples=0")))


def test_swept_loaders_become_loaders_of_the_experiment():
    experiment = experiment_from(composed("+experiment=spdl_fig5", "loaders.pytorch.sweep.num_workers=[3]"))
    assert experiment.loaders["pytorch_num_workers_3"].params["num_workers"] == 3
    assert "pytorch" not in experiment.loaders
    assert len({cell.cell_id for cell in plan_cells(experiment)}) == len(plan_cells(experiment))
