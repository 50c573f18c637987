"""What converting to shards costs is measured once, and found again where shards are found again."""

import io

import pytest
from hydra import compose, initialize_config_module
from PIL import Image

from harness.config.experiment import experiment_from
from harness.config.specs import EnergySpec
from harness.results.preparation import PREPARATION, read_preparations
from harness.run import prepare as conversion
from harness.run.datasets import open_data

pytestmark = pytest.mark.process


@pytest.fixture
def opened(tmp_path):
    root = tmp_path / "tree" / "class"
    root.mkdir(parents=True)
    for index in range(6):
        picture = io.BytesIO()
        Image.effect_noise((300, 300), 60 + index).convert("RGB").save(picture, "JPEG")
        (root / f"{index}.jpg").write_bytes(picture.getvalue())

    def make(*overrides):
        with initialize_config_module("conf", version_base="1.3"):
            cfg = compose(
                "config",
                overrides=[
                    "+experiment=smoke",
                    "workloads.resnet50.batch_size=2",
                    f"dataset.root={root.parent}",
                    *overrides,
                ],
            )
            return open_data(experiment_from(cfg), tmp_path / "cache", lambda *_: None)

    return make


def test_a_conversion_is_measured_once_and_known_to_later_runs(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "MIN_BYTES", 1)
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


def test_a_conversion_that_fails_leaves_no_cost(opened):
    (data,) = opened().each
    (data.shards / PREPARATION).unlink()
    meter = conversion.ConversionMeter(EnergySpec())
    with pytest.raises(KeyError), meter.measure(0):
        raise KeyError
    assert meter.keep(data.handle, data.shards) is None
