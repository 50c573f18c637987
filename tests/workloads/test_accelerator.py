import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.errors import CellError, ConfigError
from harness.workloads import choose_kind, make_step
from harness.workloads.classification import ResNet50
from harness.workloads.published import BOARDS, MODELS, STEPS
from harness.workloads.unet3d import UNet3D
from loaders.base import Batch

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

RESNET50 = ResNet50(batch_size=4)
TINY = ResNet50(batch_size=2, image_size=32, num_classes=10)


def batch(count, *, size=32, label=0, device="cpu"):
    data = torch.zeros(count, 3, size, size, device=device)
    return Batch(np.arange(count), data, torch.full((count,), label, device=device), nbytes=count)


def timed_s(step, given):
    started = time.monotonic_ns()
    step(given)
    return (time.monotonic_ns() - started) / 1e9


@NO_GPU
def test_auto_emulates_where_there_is_no_gpu():
    step = make_step(RESNET50, {"kind": "auto", "model": "a100", "time_scale": 1.0}, seed=0)
    assert (step.kind, step.device, step.emulated, step.label) == ("emulated", "cpu", True, "emulated: A100")


@NO_GPU
def test_cuda_without_a_gpu_names_the_key_and_the_alternatives():
    with pytest.raises(ConfigError, match=r"^accelerator\.kind=cuda: .*accelerator=emulated"):
        make_step(RESNET50, {"kind": "cuda"}, seed=0)


@NO_GPU
@pytest.mark.parametrize("stage", ["read", "preprocess"])
def test_a_stage_without_training_leaves_an_emulated_board_idle_and_has_no_step(stage):
    step = make_step(replace(RESNET50, stage=stage), {"kind": "auto"}, seed=0)
    assert (step.label, step.emulated, step.seconds_per_sample) == ("emulated: idle A100", True, 0.0)
    assert step.power == BOARDS["a100"]
    assumed = make_step(replace(RESNET50, stage=stage), {"kind": "emulated", "seconds_per_sample": 0.1}, seed=0)
    assert (assumed.label, assumed.power) == ("emulated: idle", None)
    assert make_step(replace(RESNET50, stage=stage), {"kind": "cpu"}, seed=0).kind == "none"


def test_inference_learns_nothing_and_is_emulated_by_no_step_of_training():
    inference = replace(TINY, stage="infer")
    step = make_step(inference, {"kind": "cpu"}, seed=0)
    for _ in range(2):
        step(batch(2))
    first, second = map(float, step.losses)
    assert first == second  # of the same samples and weights
    assert not step.losses[0].requires_grad
    assert make_step(inference, {"kind": "emulated", "seconds_per_sample": 0.1}, seed=0).seconds_per_sample == 0.1
    with pytest.raises(ConfigError, match=r"stage=infer: .*accelerator\.seconds_per_sample"):
        make_step(inference, {"kind": "emulated"}, seed=0)


@pytest.mark.parametrize(("model", "per_sample_s"), [("a100", 0.435 / 400), ("h100", 0.224 / 400)])
def test_an_emulated_step_takes_the_published_time_for_the_batch_that_it_gets(model, per_sample_s):
    step = make_step(RESNET50, {"kind": "emulated", "model": model}, seed=0)
    assert step.seconds_per_sample == pytest.approx(per_sample_s)
    started = time.monotonic_ns()
    for count in (40, 7):
        step(batch(count))
        began, ended = step.span_ns
        assert ended - began >= int(1e9 * count * per_sample_s)
    assert ended <= time.monotonic_ns()
    assert ended - started >= int(1e9 * 47 * per_sample_s)
    assert "MLPerf Storage" in step.citation


def test_an_emulated_step_uses_no_cpu_and_lets_other_threads_run():
    step = make_step(RESNET50, {"kind": "emulated", "time_scale": 5.0}, seed=0)
    step.warm_up()
    turns = 0
    stop = threading.Event()

    def count():
        nonlocal turns
        while not stop.wait(0.001):
            turns += 1

    other = threading.Thread(target=count)
    other.start()
    started = time.thread_time()
    step(batch(40))
    used_s = time.thread_time() - started
    stop.set()
    other.join()
    assert turns > 3
    assert used_s < 0.25 * 5 * 40 * 0.435 / 400


def test_an_emulated_steps_label_says_how_it_departs_from_the_published_one():
    step = make_step(ResNet50(batch_size=4, image_size=64), {"kind": "emulated", "time_scale": 0.5}, seed=0)
    assert step.label == "emulated: A100 at 224 pixels, 0.5 times its published step"
    assert step.seconds_per_sample == pytest.approx(0.5 * 0.435 / 400)


@pytest.mark.process
def test_an_emulated_board_has_published_power_and_a_real_device_none():
    step = make_step(RESNET50, {"kind": "emulated", "model": "h100"}, seed=0)
    assert (step.power.busy_w, step.power.idle_w) == (700.0, 70.0)
    assert "upper bound" in step.power.citation
    assert make_step(TINY, {"kind": "cpu"}, seed=0).power is None


@pytest.mark.parametrize(("model", "seconds"), [("a100", 0.636), ("h100", 0.323)])
def test_a_step_of_3d_unet_is_published_for_seven_samples(model, seconds):
    step = make_step(UNet3D(), {"kind": "emulated", "model": model}, seed=0)
    assert 7 * step.seconds_per_sample == pytest.approx(seconds)
    assert step.citation == (f"MLPerf Storage, unet3d_{model}.yaml: computation_time {seconds} s, batch_size 7")
    assert step.label == f"emulated: {model.upper()}"


def test_an_assumed_step_is_labelled_so_and_nothing_published_is_said_of_it():
    accelerator = {"kind": "emulated", "model": "h100", "time_scale": 2.0, "seconds_per_sample": {"vgg19": 0.01}}
    step = make_step(replace(RESNET50, name="vgg19"), accelerator, seed=0)
    assert (step.label, step.citation, step.power) == ("emulated: assumed 0.02 s a sample", None, None)
    assert timed_s(step, batch(3)) >= 0.06
    other = make_step(RESNET50, accelerator, seed=0)
    assert "MLPerf Storage" in other.citation
    same = make_step(RESNET50, {"kind": "emulated", "seconds_per_sample": 0.5}, seed=0)
    assert (same.label, same.citation) == ("emulated: assumed 0.5 s a sample", None)


def test_no_downstream_load_takes_batches_as_they_come_and_needs_nothing_published():
    step = make_step(replace(RESNET50, name="anything"), {"kind": "none"}, seed=0)
    step.warm_up()
    assert timed_s(step, batch(400)) < 0.435
    assert (step.kind, step.emulated, step.power, step.citation) == ("none", False, None, None)
    assert step.label == "none: no downstream load"


def test_every_published_value_names_its_source():
    assert set(BOARDS) <= set(MODELS) == {model for _, model in STEPS}
    assert all(entry.citation for entry in (*BOARDS.values(), *STEPS.values()))


@pytest.mark.parametrize(
    ("accelerator", "key"),
    [
        ({"kind": "tpu"}, "kind"),
        ({"kind": "emulated", "model": "v100"}, "model"),
        ({"kind": "emulated", "time_scale": 0}, "time_scale"),
        ({"kind": "emulated", "time_scale": float("nan")}, "time_scale"),
        ({"kind": "emulated", "time_scale": "2"}, "time_scale"),
        ({"kind": "emulated", "seconds_per_sample": 0}, "seconds_per_sample"),
        ({"kind": "emulated", "seconds_per_sample": "fast"}, "seconds_per_sample"),
        ({"kind": "emulated", "seconds_per_sample": {"rnnt": -1}}, r"seconds_per_sample\.rnnt"),
    ],
)
def test_an_impossible_accelerator_is_refused_by_its_key(accelerator, key):
    with pytest.raises(ConfigError, match=rf"^accelerator\.{key}="):
        choose_kind(accelerator, "resnet50")


@pytest.mark.parametrize("assumed", [None, {"rnnt": 0.1}])
def test_emulating_a_workload_without_a_published_or_assumed_step_is_refused(assumed):
    with pytest.raises(ConfigError, match=r"vgg19 .*accelerator\.seconds_per_sample=SECONDS"):
        choose_kind({"kind": "emulated", "seconds_per_sample": assumed}, "vgg19")


@pytest.mark.process
def test_a_real_step_trains_and_the_same_seed_has_the_same_weights():
    steps = [make_step(TINY, {"kind": "cpu"}, seed=seed) for seed in (1, 1, 2)]
    weights = [next(step._model.parameters()).detach().clone() for step in steps]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    steps[0].warm_up()
    before = next(steps[0]._model.parameters()).detach().clone()
    steps[0](batch(3))  # a short last batch
    assert not torch.equal(before, next(steps[0]._model.parameters()))
    assert (steps[0].label, steps[0].device, steps[0].emulated) == ("cpu", "cpu", False)


def test_making_a_step_leaves_the_global_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    make_step(TINY, {"kind": "cpu"}, seed=9)
    assert torch.equal(torch.rand(1), expected)


def test_a_label_beyond_the_models_classes_is_named():
    step = make_step(TINY, {"kind": "cpu"}, seed=0)
    with pytest.raises(CellError, match=r"label 10.*num_classes=10"):
        step(batch(2, label=10))


@GPU
@pytest.mark.gpu
def test_a_cuda_step_is_done_when_it_returns():
    step = make_step(TINY, {"kind": "cuda"}, seed=0)
    step.warm_up()
    step(batch(2, device="cuda"))
    assert torch.cuda.current_stream().query()
    assert step.label.startswith("cuda: ")


@pytest.mark.parametrize(
    ("key", "value"), [("batch_size", 0), ("image_size", 16), ("num_classes", 1), ("stage", "look")]
)
def test_an_impossible_workload_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"resnet50\.{key}={value!r}"):
        ResNet50(**{"batch_size": 2, key: value})


@GPU
@pytest.mark.gpu
def test_auto_takes_the_gpu_where_there_is_one():
    assert choose_kind({"kind": "auto"}, "resnet50") == "cuda"


def test_a_published_step_of_volumes_is_of_voxels():
    small = UNet3D(crop_size=32, widths=(8, 16))
    assert make_step(small, {"kind": "emulated"}, seed=0).label == "emulated: A100 at 128 voxels"
