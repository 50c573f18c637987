"""What a cell makes from its spec, it is given the keys for: no more and no fewer."""

import pytest

from harness.cell.main import make_loader
from harness.cell.messages import CellSpec
from harness.config.specs import AcceleratorSpec, Component, LoaderSpec
from harness.config.targets import check_arguments, instantiate
from harness.errors import ConfigError
from harness.workloads.classification import Classification, ResNet50
from loaders.base import Samples


def spec(tmp_path, **params):
    samples = Samples(tmp_path, ("0.jpg",), [0], [1])
    samples.save(tmp_path / "samples.parquet")
    return CellSpec(
        cell_id="a",
        out=tmp_path,
        loader=LoaderSpec(target="loaders.pytorch.PyTorchLoader", params=params),
        workload=Component(target="harness.workloads.classification.ResNet50"),
        accelerator=AcceleratorSpec(),
        samples=tmp_path / "samples.parquet",
        data_root=tmp_path,
        seed=0,
        warmup_samples=0,
        energy_store=tmp_path / "energy.sqlite",
    )


def test_a_cell_whose_loader_takes_no_such_key_says_which_one_it_takes(tmp_path):
    with pytest.raises(ConfigError, match=r"PyTorchLoader\.num_wokers: .*num_workers\?"):
        make_loader(spec(tmp_path, num_wokers=2), ResNet50(batch_size=1), "cpu")


def test_a_key_that_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"ResNet50.*'batch_size'"):
        instantiate("harness.workloads.classification.ResNet50", {"image_size": 64})


def test_what_classifiers_have_in_common_is_no_classifier():
    with pytest.raises(TypeError, match="abstract"):
        Classification(batch_size=1)
    assert ResNet50(batch_size=1).name == "resnet50"


def test_an_argument_that_is_a_word_or_a_number_may_be_given_as_a_number():
    check_arguments("loaders.streaming", "loaders.streaming.StreamingLoader", {"prefetch_batches": 3})
    with pytest.raises(ConfigError, match=r"loaders\.streaming\.prefetch_batches=True: expected text"):
        check_arguments("loaders.streaming", "loaders.streaming.StreamingLoader", {"prefetch_batches": True})
