"""A form in which a daemon serves a dataset: made once of its shards, measured, and refused where nodes have parts."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from harness.config.experiment import experiment_from
from harness.datasets import DatasetHandle
from harness.datasets.placement import open_shards
from harness.errors import ConfigError
from harness.results.preparation import load_preparation
from harness.run.prepare import check_forms, forms_of, open_forms
from loaders.base import Samples
from loaders.errors import LoaderError

pytestmark = pytest.mark.process

MODULE = "tests_own_form"


@pytest.fixture
def module(monkeypatch):
    """A daemon's module whose form is one file; it counts how often it is made."""
    made = SimpleNamespace(FORM="joined-1", count=0, fails=False)

    def prepare(shards: Path, folder: Path, progress):
        made.count += 1
        (folder / "joined").write_bytes(b"".join(path.read_bytes() for path in sorted(shards.glob("*.tfrecord"))))
        progress(1, 1)
        if made.fails:
            raise LoaderError("the disk is on fire")

    made.prepare = prepare
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


def experiment(*overrides):
    with initialize_config_module("conf", version_base="1.3"):
        streamed = ["+experiment=smoke", f"loaders.streaming.daemon.module={MODULE}"]
        return experiment_from(compose("config", overrides=[*streamed, *overrides]))


@pytest.fixture
def dataset(tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.jpg").write_bytes(bytes([n]) * 100)
    samples = Samples(tmp_path, tuple(f"{n}.jpg" for n in range(4)), np.zeros(4, np.int64), np.full(4, 100))
    handle = DatasetHandle("tree", samples, (), "abc", {})
    return handle, open_shards(handle, tmp_path / "cache", lambda *_: None)


def test_a_form_is_made_once_and_its_cost_is_kept_with_it(module, dataset, tmp_path):
    handle, shards = dataset
    heard = []
    one = open_forms(experiment(), handle, shards, tmp_path / "cache", lambda *said: heard.append(said))[MODULE]
    assert (one.folder / "joined").read_bytes() == next(shards.glob("*.tfrecord")).read_bytes()
    assert ("preparing tree as joined-1", 1, 1) in heard
    assert (one.preparation.form, one.preparation.module, one.preparation.samples) == ("joined-1", MODULE, 4)
    assert one.preparation.shard_bytes == (one.folder / "joined").stat().st_size
    assert one.preparation.raw_bytes > one.preparation.shard_bytes, "a shard's index is not in the form"
    again = open_forms(experiment(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE]
    assert again == one
    assert load_preparation(one.folder) == one.preparation
    assert module.count == 1
    module.FORM = "joined-2"
    other = open_forms(experiment(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE]
    assert other.folder != one.folder
    assert module.count == 2


def test_a_form_whose_making_failed_is_not_there(module, dataset, tmp_path):
    handle, shards = dataset
    module.fails = True
    with pytest.raises(LoaderError, match="on fire"):
        open_forms(experiment(), handle, shards, tmp_path / "cache", lambda *_: None)
    assert [path.name for path in (tmp_path / "cache" / "forms").iterdir() if path.is_dir()] == []
    module.fails = False
    assert open_forms(experiment(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE].folder.exists()
    assert module.count == 2


@pytest.mark.parametrize(("placement", "storages", "told"), [("half", 1, "placement=half"), ("remote", 2, "2 storage")])
def test_a_form_is_refused_where_each_node_has_a_part(module, placement, storages, told):
    with pytest.raises(ConfigError, match=rf"loaders\.streaming: {MODULE}.*{told}"):
        check_forms(experiment(f"placement={placement}"), storages)


def test_a_daemon_without_a_form_serves_shards():
    with initialize_config_module("conf", version_base="1.3"):
        assert forms_of(experiment_from(compose("config", overrides=["+experiment=smoke"]))) == {}
