"""What no cell could use is refused in one line that names it: a key, a class, or a value by its class or daemon."""

import sys
from dataclasses import dataclass

import psutil
import pytest

from harness.__main__ import main
from harness.errors import ConfigError
from harness.run.check import check_components
from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderConfigError
from tests.harness.configs import experiment

SMALL = ["dataset.samples=24", "repeats=3", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]
OWN = "tests.harness.run.test_check"
PYTORCH = ("~loaders.dali", "~loaders.streaming")
STREAMING = ("~loaders.dali", "~loaders.pytorch", "accelerator=cpu")
UNET = ("~workloads.resnet50", "+workload@workloads.unet3d=unet3d", "dataset=kits19_small")


def refusal(*overrides):
    """Return the error of overrides that are refused."""
    with pytest.raises(ConfigError) as error:
        check_components(experiment(*overrides))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "key", "meant", "there"),
    [
        ("loaders.pytorch.num_wokers=2", "loaders.pytorch.num_wokers", "num_workers", "prefetch_factor"),
        ("loaders.pytroch.num_workers=2", "loaders.pytroch", "pytorch", "dali, dali_emlio, fixed, pytorch"),
        ("loader.pytorch.num_workers=2", "loader", "loaders", "workloads"),
        ("repeat=2", "repeat", "repeats", "epochs"),
        ("+repeat=2", "repeat", "repeats", "epochs"),
        ("workloads.resnet50.batchsize=2", "workloads.resnet50.batchsize", "batch_size", "image_size"),
        ("regimes.wan_30ms.rtt=2", "regimes.wan_30ms.rtt", "rtt_ms", "rate_gbit"),
        ("+regimes.wan_30ms.rtt=2", "regimes.wan_30ms.rtt", "rtt_ms", "rate_gbit"),
        ("+energy.intervall_ms=2", "energy.intervall_ms", "interval_ms", "sensors"),
        ("accelerator=cpuu", "accelerator=cpuu", "cpu", "emulated"),
        ("dataset=imagenet_smal", "dataset=imagenet_smal", "imagenet_small", "kits19_small"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_one_and_with_all_there_are(override, key, meant, there):
    said = refusal("+experiment=wan30ms", override)
    assert said.startswith(f"{key}: ")
    assert f"(did you mean {meant}?)" in said
    assert there in said


def test_a_key_that_the_class_takes_and_the_config_does_not_set_is_added_with_a_plus():
    said = refusal("+experiment=wan30ms", "loaders.pytorch.pin_memory=false")
    assert said.endswith("+loaders.pytorch.pin_memory=VALUE")


@pytest.mark.parametrize("override", ["nonsense", "repeats = 3", "dataset.root=/data/a(b)", "figures=[a,b"])
def test_what_cannot_be_read_as_an_override_is_named(override):
    assert refusal("+experiment=wan30ms", override).startswith(f"{override}: ")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+loaders.pytorch.num_wokers=2", ["loaders.pytorch.num_wokers: ", "did you mean num_workers?"]),
        ("+loaders.pytorch.sweep={num_wokers: [1, 2]}", ["loaders.pytorch.sweep.num_wokers: ", "num_workers?"]),
        ("+loaders.pytorch.seed=3", ["loaders.pytorch.seed: is given by the harness"]),
        ("+loaders.pytorch.imbalance=0.2", ["loaders.pytorch.imbalance: there is one rank"]),
        ("+workloads.resnet50.image_sise=64", ["workloads.resnet50.image_sise: ", "image_size?"]),
        ("workloads.resnet50.batch_size=0", ["workloads.resnet50.batch_size=0"]),
        ("+dataset.mean_kbs=3", ["dataset.mean_kbs: ", "mean_kb?"]),
        ("dataset.samples=0", ["dataset.samples=0"]),
        ("+dataset@workloads.resnet50.dataset={_target_: loaders.no.Such}", ["workloads.resnet50.dataset"]),
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
        ("+loaders.own={_target_: tests.harness.run.test_check.Picky, environment: mosiac}", ["environment=mosiac: "]),
        ("+loaders.own={_target_: tests.harness.run.test_check.Picky, environment: vm}", ["environment=vm: "]),
        (
            "+loaders.own={_target_: tests.harness.run.test_check.Picky, environment: ../mosaic}",
            ["environment='../mosaic'"],
        ),
    ],
)
def test_a_class_that_is_none_or_takes_no_such_key_is_refused_before_anything_starts(override, words):
    said = refusal("+experiment=smoke", *PYTORCH, override)
    for word in words:
        assert word in said


def test_a_wrong_value_of_a_workloads_own_dataset_is_named_by_its_key():
    two = ("+workload@workloads.two=resnet50", "+dataset@workloads.two.dataset=synthetic_2mb")
    said = refusal("+experiment=smoke", *PYTORCH, *two, "workloads.two.dataset.samples=0")
    assert said.startswith("workloads.two.dataset.samples=0")


def test_hosts_do_not_have_environments():
    there = ["testbed=ssh", "testbed.inventory=hosts.yml"]
    own = "+loaders.own={_target_: tests.harness.run.test_check.Picky, environment: mosaic}"
    assert refusal("+experiment=smoke", *PYTORCH, own, *there).startswith("loaders.own.environment: testbed=ssh")


@pytest.mark.parametrize(
    ("workload", "dataset"), [("unet3d", "kits19_small"), ("mask_rcnn", "coco_small"), ("rnnt", "librispeech_small")]
)
def test_every_workload_is_streamed_by_default(workload, dataset):
    chosen = ("~workloads.resnet50", f"+workload@workloads.{workload}={workload}", f"dataset={dataset}")
    check_components(experiment("+experiment=smoke", *STREAMING, *chosen))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*UNET, "loaders.streaming.decode=dali"], "loaders.streaming with workloads.unet3d: decode=dali"),
        (["loaders.streaming.decode=other"], "loaders.streaming with workloads.resnet50: decode='other'"),
        (["loaders.streaming.decode=raw"], "decode=raw"),
        (["loaders.streaming.decode=dali", "+loaders.streaming.on_error=skip"], "on_error=skip"),
    ],
)
def test_an_engine_that_cannot_run_a_workload_is_refused(overrides, message):
    assert message in refusal("+experiment=smoke", *STREAMING, *overrides)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.process
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loaders.pytorch.prefetch_factor=0", "loaders.pytorch with workloads.resnet50: prefetch_factor=0: expected"),
        ("loaders.streaming.daemon.threads=0", "loaders.streaming.daemon.threads=0: expected"),
        ("workload@workloads.resnet50=unet3d", "workloads.resnet50 cannot be trained on its dataset (dataset): sample"),
        (f"+loaders.own={{_target_: {OWN}.Picky}}", "loaders.own with workloads.resnet50: it is never content"),
        (
            f"+loaders.own={{_target_: {OWN}.Broken}}",
            "loaders.own with workloads.resnet50: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_what_every_cell_would_refuse_is_told_once_and_before_the_testbed(
    override, message, tmp_path, cache, monkeypatch, capfd
):
    where = [f"results_dir={tmp_path}/results", f"cache_dir={cache}"]
    monkeypatch.setattr(sys, "argv", ["harness", "+experiment=smoke", *SMALL, *where, override])
    status = main()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if not line.endswith(")")]
    assert status == 2
    assert message in line
    assert not list((tmp_path / "results").glob("2*"))
    assert not [child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()]


@dataclass
class Picky:
    """A loader of the user's own."""

    samples: Samples
    transform: object
    batch_size: int
    seed: int
    device: str

    def __post_init__(self):
        raise LoaderConfigError("it is never content")

    def epoch(self, epoch):
        yield Batch

    def stats(self):
        return LoaderStats()

    def close(self):
        pass


class Broken(Picky):
    def __post_init__(self):
        1 / 0  # noqa: B018
