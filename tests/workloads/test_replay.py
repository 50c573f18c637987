"""Replays of published times: samples sleep as a paper's table says, and steps are scaled with them."""

import numpy as np
import pytest
from omegaconf import OmegaConf

from harness.config import list_packaged
from harness.config.targets import instantiate
from harness.errors import ConfigError
from harness.report.papers import find_table
from harness.workloads.accelerator import make_step
from harness.workloads.timed import Replay
from loaders.pipeline.synthetic_load import LightStep, ReplayStep, fit_times, split
from tests.harness.configs import experiment


def times_ms(workload, count):
    steps = workload.transform.transforms
    return np.array([sum(step.seconds_for(sample) for step in steps) for sample in range(count)]) * 1e3


def replayed(name, **params):
    made = experiment("+experiment=minato_model_fig7").workloads[f"{name}_replay"]
    return instantiate(made.target, {**made.params, "time_scale": 1.0, **params})


@pytest.mark.parametrize("name", ["unet3d", "mask_rcnn"])
def test_the_replayed_times_are_distributed_as_published(name):
    table = find_table(f"minato/table2/{name}")
    ms = times_ms(replayed(name), 20_000)
    assert ms.mean() == pytest.approx(table["mean"], rel=0.005)
    assert ms.std() == pytest.approx(table["std"], rel=0.025)
    assert np.percentile(ms, [50, 75, 90]) == pytest.approx([table["median"], table["p75"], table["p90"]], rel=0.002)
    assert (ms.min(), ms.max()) == (pytest.approx(table["low"], rel=0.01), pytest.approx(table["high"], rel=0.01))
    assert table["low"] <= ms.min() and ms.max() <= table["high"]
    # So few samples are an epoch of the small experiments.
    assert times_ms(replayed(name), 200).mean() == pytest.approx(table["mean"], rel=0.02)


@pytest.mark.parametrize("name", ["speech_3s", "speech_10s"])
def test_the_replayed_times_of_speech_are_those_of_its_two_steps(name):
    table, ms = find_table(f"minato/table2/{name}"), times_ms(replayed(name), 1000)
    assert ms.mean() == pytest.approx(table["mean"], rel=0.03)
    # The table has 8 ms of other steps.
    assert (ms.min(), ms.max()) == (pytest.approx(table["low"], rel=0.01), pytest.approx(table["high"], rel=0.01))
    with pytest.raises(ConfigError, match=rf"times=minato/table2/{name}: no times with these percentiles have a mean"):
        Replay(times=f"minato/table2/{name}")


def test_a_sample_takes_its_time_in_every_epoch_and_another_seed_gives_it_another():
    first = times_ms(replayed("unet3d"), 50)
    assert np.array_equal(first, times_ms(replayed("unet3d"), 50))
    assert not np.allclose(first, times_ms(replayed("unet3d", seed=1), 50))
    assert times_ms(replayed("unet3d", parts=1), 50) == pytest.approx(first)


def test_the_scale_is_on_samples_and_steps_alike():
    settings = {"kind": "emulated", "model": "a100", "seconds_per_sample": {"mask_rcnn": 0.01}}
    for name, seconds in (("unet3d", 0.636 / 7), ("mask_rcnn", 0.01)):
        workload = replayed(name, time_scale=0.5)
        assert times_ms(workload, 9) == pytest.approx(0.5 * times_ms(replayed(name), 9))
        assert make_step(workload, settings, 0).seconds_per_sample == pytest.approx(0.5 * seconds)
    assert make_step(replayed("unet3d", time_scale=0.5), settings, 0).label == (
        "emulated: A100, 0.5 times its published step"
    )


def test_every_replay_says_that_it_is_a_model_check_and_of_which_table():
    shipped = {name: path for name, path in list_packaged("workload").items() if name.endswith("_replay")}
    assert len(shipped) == 4
    assert {replayed(name.removesuffix("_replay")).model_check for name in shipped} == {
        "unet3d: Table 2 of MinatoLoader",
        "mask_rcnn: Table 2 of MinatoLoader",
        "speech_3s: Table 1 and section 2.2 of MinatoLoader",
        "speech_10s: Table 1 and section 2.2 of MinatoLoader",
    }
    assert "model_check" not in OmegaConf.to_yaml(OmegaConf.load(shipped["unet3d_replay"]))


def test_the_parts_of_a_step_have_names_of_their_own_and_its_time_together():
    parts = split((LightStep(0.4),), 4)
    assert [part.name for part in parts] == ["LightStep1", "LightStep2", "LightStep3", "LightStep4"]
    assert sum(part.seconds_for(0) for part in parts) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"times": "minato/table9/unet3d"}, r"times=minato/table9/unet3d: conf/papers has none"),
        ({"times": "nobody/table2/unet3d"}, r"times=nobody/table2/unet3d: conf/papers has none"),
        ({"times": "minato/fig7/unet3d"}, r"times=minato/fig7/unet3d: .*pytorch"),
        ({"times": ""}, r"workloads\.unet3d: expected either times, .* or light_s and heavy_s"),
        ({"times": "", "light_s": 1, "heavy_s": 0.5}, r"heavy_s=0\.5: expected light_s=1 or more"),
        ({"times": "minato/table2/unet3d", "parts": 0}, r"parts=0"),
        ({"times": "minato/table2/unet3d", "time_scale": -1}, r"time_scale=-1"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_its_key(params, message):
    with pytest.raises(ConfigError, match=message):
        Replay(**params)


def test_values_out_of_order_have_no_quantile_function():
    table = {"low": 1, "median": 5, "p75": 4, "p90": 6, "high": 9, "mean": 5, "std": 1}
    with pytest.raises(ValueError, match="expected 0 <= low < median <= p75 <= p90 < high"):
        fit_times(**table)
    pieces = fit_times(low=10, median=470, p75=630, p90=750, high=2230, mean=500, std=197)
    assert ReplayStep(times=pieces, seconds=1.0).seconds_for(0) == pytest.approx(470)
