"""Workloads find their own datasets; equal ones are opened and stored once."""

import io

import pytest
from omegaconf import OmegaConf
from PIL import Image

from harness.config.experiment import experiment_from
from harness.errors import ConfigError, DatasetError
from harness.run import host_data
from harness.run.datasets import open_data
from harness.testbed.base import Node
from loaders.base import Samples
from tests.harness.configs import composed, experiment

TWO = ("+experiment=smoke", "~loaders.streaming", "+workload@workloads.two=resnet50", "workloads.two.batch_size=2")
TWO += ("+dataset@workloads.two.dataset=imagenet_small", "workloads.resnet50.batch_size=2")


@pytest.fixture
def tree(tmp_path):
    def make(name, count):
        for index in range(count):
            picture = io.BytesIO()
            Image.new("RGB", (40, 30), (index * 20, 0, 0)).save(picture, "JPEG")
            path = tmp_path / name / f"class{index % 2}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture.getvalue())
        return tmp_path / name

    return make


def opened(tmp_path, *overrides):
    return open_data(experiment(*TWO, *overrides), tmp_path / "cache", lambda *_: None)


def test_each_workload_has_the_samples_of_its_own_dataset(tree, tmp_path):
    data = opened(tmp_path, f"dataset.root={tree('a', 4)}", f"workloads.two.dataset.root={tree('b', 6)}")
    assert {key: one.describe().samples for key, one in data.by_workload.items()} == {"resnet50": 4, "two": 6}
    stored = data.store(tmp_path, {})
    names = {key: nodes.samples_file.name for key, nodes in stored.items()}
    assert len(set(names.values())) == 2
    assert all(name.startswith("samples-tree-") for name in names.values())
    assert len(Samples.load(stored["two"].samples_file)) == 6
    assert stored["two"].opened.handle.samples.root == tmp_path / "b"


def test_one_dataset_is_opened_once_and_stored_under_its_usual_name(tree, tmp_path):
    root = tree("a", 4)
    data = opened(tmp_path, f"dataset.root={root}", f"workloads.two.dataset.root={root}")
    assert len(data.each) == 1
    assert data.content_hash == data.each[0].handle.content_hash
    assert {nodes.samples_file for nodes in data.store(tmp_path, {}).values()} == {tmp_path / "samples.parquet"}


def test_another_dataset_of_one_workload_makes_another_run(tree, tmp_path):
    a, b, c = tree("a", 4), tree("b", 4), tree("c", 6)
    one = opened(tmp_path, f"dataset.root={a}", f"workloads.two.dataset.root={b}")
    other = opened(tmp_path, f"dataset.root={a}", f"workloads.two.dataset.root={c}")
    swapped = opened(tmp_path, f"dataset.root={c}", f"workloads.two.dataset.root={a}")
    assert len({one.content_hash, other.content_hash, swapped.content_hash}) == 3


def test_a_batch_is_compared_with_the_workload_s_own_dataset(tree, tmp_path):
    with pytest.raises(ConfigError, match=r"workloads\.two\.batch_size=5 .*at most 4$"):
        opened(
            tmp_path,
            f"dataset.root={tree('a', 8)}",
            f"workloads.two.dataset.root={tree('b', 4)}",
            "workloads.two.batch_size=5",
            "workloads.resnet50.batch_size=5",
        )


@pytest.mark.process
def test_a_host_describes_what_it_has_as_the_lead_would_find_it(tree, tmp_path, monkeypatch):
    cfg = composed(
        *TWO,
        "~loaders.dali",
        f"dataset.root={tree('a', 4)}",
        f"workloads.two.dataset.root={tree('b', 6)}",
        "placement=half",
    )
    config = OmegaConf.to_container(cfg, resolve=True)
    shown = []
    node = Node("storage", "datatest")
    monkeypatch.setattr(host_data, "_folder", lambda node: tmp_path / "data")
    found = host_data.open_data_on([node], config, tmp_path / "cache", lambda *said: shown.append(said))
    here = open_data(experiment_from(cfg), tmp_path / "cache", lambda *_: None)
    assert shown
    assert found.content_hash == here.content_hash
    for key, one in here.by_workload.items():
        there = found.by_workload[key]
        assert (there.describe(), there.provenance(), there.shards) == (one.describe(), one.provenance(), one.shards)
        assert there.placed.shards == one.placed.shards
        assert (there.placed.on_compute == one.placed.on_compute).all()
    broken = {**config, "dataset": {**config["dataset"], "root": "/no/such/place"}}
    with pytest.raises(DatasetError, match=r"^host .*/no/such/place"):
        host_data.open_data_on([node], broken, tmp_path / "cache", lambda *_: None)
