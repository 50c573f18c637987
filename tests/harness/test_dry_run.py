"""Values that a loader, its daemon or a workload's data refuse are one message before the testbed, not one a cell."""

import sys
from dataclasses import dataclass

import psutil
import pytest

from harness.cli import main
from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderConfigError

pytestmark = pytest.mark.process

SMALL = ["dataset.samples=24", "repeats=3", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]
OWN = "tests.harness.test_dry_run"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def refused(tmp_path, cache, monkeypatch, capfd):
    def of(*overrides):
        where = [f"results_dir={tmp_path}/results", f"cache_dir={cache}"]
        monkeypatch.setattr(sys, "argv", ["harness", "+experiment=smoke", *SMALL, *where, *overrides])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # it is set, and unset again after the test
        status = main()
        told = [line for line in capfd.readouterr().err.splitlines() if not line.endswith(")")]
        assert status == 2, told
        assert not list((tmp_path / "results").glob("2*"))
        assert not [child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()]
        (line,) = told
        return line

    return of


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loaders.dali.num_threads=0", "loaders.dali with workloads.resnet50: num_threads=0: expected a whole number"),
        ("loaders.pytorch.prefetch_factor=0", "loaders.pytorch with workloads.resnet50: prefetch_factor=0: expected"),
        ("+loaders.pytorch.on_error=ignore", "loaders.pytorch with workloads.resnet50: on_error='ignore': expected"),
        ("loaders.streaming.wire=xml", "loaders.streaming with workloads.resnet50: wire='xml': expected"),
        ("loaders.streaming.decode=raw", "decode=raw: nothing is trained on encoded samples"),
        ("loaders.streaming.daemon.threads=0", "loaders.streaming.daemon.threads=0: expected"),
        ("workload@workloads.resnet50=unet3d", "workloads.resnet50 cannot be trained on its dataset (dataset): sample"),
        (f"+loaders.own={{_target_: {OWN}.Picky}}", "loaders.own with workloads.resnet50: it is never content"),
        (
            f"+loaders.own={{_target_: {OWN}.Broken}}",
            "loaders.own with workloads.resnet50: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_what_every_cell_would_refuse_is_told_once(override, message, refused):
    assert message in refused(override)


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
