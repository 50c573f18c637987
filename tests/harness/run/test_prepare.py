"""What loaders need before a run: environments, servers, and datasets in other forms, whose cost is measured once."""

import io
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from harness.__main__ import main
from harness.config.specs import EnergySpec
from harness.datasets import DatasetHandle
from harness.datasets.placement import open_shards
from harness.errors import ConfigError, TestbedError
from harness.results.preparation import PREPARATION, load_preparation, read_preparations
from harness.run import prepare
from harness.run.datasets import open_data
from harness.run.prepare import check_forms, forms_of, open_forms, python_of
from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.shared.fixed import FixedBatchLoader
from tests.harness.configs import experiment

pytestmark = pytest.mark.process

MODULE = "tests_own_form"
OWN = "tests.harness.run.test_prepare.Elsewhere"
SMALL = ["dataset.samples=12", "epochs=1", "repeats=1", "warmup_samples=0", "workloads.resnet50.batch_size=4"]
ALONE = ["~loaders.pytorch", "~loaders.dali", "~loaders.streaming", "figures=[]", "accelerator=none"]


class Elsewhere(FixedBatchLoader):
    """A loader that says where it runs."""

    @property
    def notes(self):
        import streaming

        return (f"runs with {sys.executable} and streaming {streaming.__version__}",)


@pytest.mark.slow
def test_a_cell_runs_in_its_loaders_environment_and_the_provenance_names_its_packages(tmp_path, monkeypatch):
    where = [f"results_dir={tmp_path}/results", f"cache_dir={tmp_path}/cache"]
    own = f"+loaders.own={{_target_: {OWN}, reads: once, environment: mosaic}}"
    monkeypatch.setattr(sys, "argv", ["harness", "+experiment=smoke", *SMALL, *ALONE, *where, own])
    assert main() in (0, 6)
    (run,) = (tmp_path / "results").glob("2*")
    (cell,) = run.glob("cells/*/cell.json")
    there = python_of("mosaic")
    assert there != sys.executable
    assert any(f"runs with {there} and streaming 0.13" in note for note in json.loads(cell.read_text())["notes"])
    packages = json.loads(next(run.glob("provenance*.json")).read_text())["environments"]
    assert packages["mosaic.mosaicml-streaming"]["value"].startswith("0.13")
    assert packages["mosaic.torch"]["value"] == version("torch")


def test_a_script_that_fails_is_told_by_its_last_words(tmp_path, monkeypatch):
    script = tmp_path / "broken.sh"
    script.write_text("#!/bin/sh\necho 'broken: the packages could not be installed' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(prepare, "PLAYBOOKS", tmp_path)
    with pytest.raises(TestbedError, match=r"playbooks/broken\.sh .*broken: the packages could not be installed"):
        python_of("broken")


def test_a_python_without_a_lock_is_asked_for_by_its_name(tmp_path, monkeypatch):
    for tool in ("sh", "dirname", "sha256sum", "cut", "mkdir", "touch", "flock", "rm"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TestbedError, match=r"needed and not found: python3\.14t; uv python install 3\.14t"):
        python_of("freethreaded")


def test_servers_are_there_before_anything_is_measured():
    wanted = experiment("+experiment=latency_tightloop")
    said = []
    prepare.make_environments(wanted, said.append)
    servers = {"cassandra": "loaders.nosql.daemon.module", "minio": "loaders.mosaic.daemon.module"}
    assert prepare.servers_of(wanted) == servers
    assert [name for name in servers if f"playbooks/{name}.sh" in " ".join(said)] == list(servers)
    assert any(prepare.find_or_make("cassandra").rglob("*cassandra*.jar"))
    assert prepare.find_or_make("minio").is_file()


@pytest.fixture
def opened(tmp_path):
    root = tmp_path / "tree" / "class"
    root.mkdir(parents=True)
    for index in range(6):
        picture = io.BytesIO()
        Image.effect_noise((300, 300), 60 + index).convert("RGB").save(picture, "JPEG")
        (root / f"{index}.jpg").write_bytes(picture.getvalue())

    def make(*overrides):
        fixed = ["+experiment=smoke", "workloads.resnet50.batch_size=2", f"dataset.root={root.parent}"]
        return open_data(experiment(*fixed, *overrides), tmp_path / "cache", lambda *_: None)

    return make


def test_a_conversion_is_measured_once_and_known_to_later_runs(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MIN_BYTES", 1)
    (first,) = opened("energy.interval_ms=10", "energy.cpu_tdp_w=100").each
    found = first.preparation
    assert (found.samples, found.raw_bytes) == (6, int(first.handle.samples.sizes.sum()))
    assert found.shard_bytes > found.raw_bytes
    assert found.seconds > 0
    # Of a sensor, or of the estimate where the machine has none.
    assert found.joules > 0
    assert "cpu=" in found.energy_source
    again = opened()
    assert again.each[0].preparation == found
    again.store(tmp_path, {})
    assert read_preparations(tmp_path) == (found,)


def test_shards_of_which_the_cost_was_not_measured_have_none(opened, tmp_path):
    (first,) = opened().each
    assert first.preparation.joules is None, "few bytes are not worth an agent"
    (first.shards / PREPARATION).write_text("{")
    again = opened()
    assert again.each[0].preparation is None
    again.store(tmp_path, {})
    assert read_preparations(tmp_path) == ()
    meter = prepare.ConversionMeter(EnergySpec())
    with pytest.raises(KeyError), meter.measure(0):
        raise KeyError
    assert meter.keep(first.handle, first.shards) is None, "a conversion that fails has no cost"


@pytest.fixture
def module(monkeypatch):
    """A daemon's module whose form is one file; it counts how often it is made."""
    made = SimpleNamespace(FORM="joined-1", count=0, fails=False)

    def make(shards: Path, folder: Path, progress):
        made.count += 1
        (folder / "joined").write_bytes(b"".join(path.read_bytes() for path in sorted(shards.glob("*.tfrecord"))))
        progress(1, 1)
        if made.fails:
            raise LoaderError("the disk is on fire")

    made.prepare = make
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


def streamed(*overrides):
    return experiment("+experiment=smoke", f"loaders.streaming.daemon.module={MODULE}", *overrides)


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
    one = open_forms(streamed(), handle, shards, tmp_path / "cache", lambda *said: heard.append(said))[MODULE]
    assert (one.folder / "joined").read_bytes() == next(shards.glob("*.tfrecord")).read_bytes()
    assert ("preparing tree as joined-1", 1, 1) in heard
    assert (one.preparation.form, one.preparation.module, one.preparation.samples) == ("joined-1", MODULE, 4)
    assert one.preparation.shard_bytes == (one.folder / "joined").stat().st_size
    assert one.preparation.raw_bytes > one.preparation.shard_bytes, "a shard's index is not in the form"
    again = open_forms(streamed(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE]
    assert again == one
    assert load_preparation(one.folder) == one.preparation
    assert module.count == 1
    module.FORM = "joined-2"
    other = open_forms(streamed(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE]
    assert other.folder != one.folder
    assert module.count == 2


def test_a_form_whose_making_failed_is_not_there(module, dataset, tmp_path):
    handle, shards = dataset
    module.fails = True
    with pytest.raises(LoaderError, match="on fire"):
        open_forms(streamed(), handle, shards, tmp_path / "cache", lambda *_: None)
    assert [path.name for path in (tmp_path / "cache" / "forms").iterdir() if path.is_dir()] == []
    module.fails = False
    assert open_forms(streamed(), handle, shards, tmp_path / "cache", lambda *_: None)[MODULE].folder.exists()


@pytest.mark.parametrize(("placement", "storages", "told"), [("half", 1, "placement=half"), ("remote", 2, "2 storage")])
def test_a_form_is_refused_where_each_node_has_a_part(module, placement, storages, told):
    with pytest.raises(ConfigError, match=rf"loaders\.streaming: {MODULE}.*{told}"):
        check_forms(streamed(f"placement={placement}"), storages)


def test_a_daemon_without_a_form_serves_shards():
    assert forms_of(experiment("+experiment=smoke")) == {}
