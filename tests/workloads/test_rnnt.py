import itertools
import math

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from harness.config.targets import instantiate
from harness.datasets.librispeech.generated import LibriSpeechLike
from harness.errors import CellError, ConfigError
from harness.workloads import make_step
from harness.workloads.rnnt import RNNT
from harness.workloads.transducer import Transducer, rnnt_loss
from loaders import PyTorchLoader
from loaders.base import Batch

SMALL = RNNT(batch_size=3, encoder_size=24, predictor_size=16, joint_size=24, typical_s=0.6)


def configured(name):
    with initialize_config_module(config_module="conf", version_base=None):
        group = OmegaConf.to_container(compose("config", overrides=[f"+workload@workloads.it={name}"]).workloads.it)
    return instantiate(group.pop("_target_"), group)


def by_enumeration(logits, labels):
    """Return minus the log of the sum over all alignments, each walked on its own."""
    probabilities = logits.log_softmax(-1)
    frames, rows, _ = logits.shape
    paths = []
    # The last step is a blank from the last frame: what is free is where the labels stand among the others.
    for places in itertools.combinations(range(frames + rows - 2), rows - 1):
        t = u = 0
        total = logits.new_zeros(())
        for step in range(frames + rows - 2):
            if step in places:
                total = total + probabilities[t, u, labels[u]]
                u += 1
            else:
                total = total + probabilities[t, u, 0]
                t += 1
        paths.append(total + probabilities[t, u, 0])
    return -torch.logsumexp(torch.stack(paths), 0)


def case(frames, characters, symbols=4, seed=0, n=1):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn((n, frames, characters + 1, symbols), generator=rng, dtype=torch.float64) * 2
    return logits.requires_grad_(), torch.randint(1, symbols, (n, characters), generator=rng)


@pytest.mark.parametrize(
    ("frames", "characters"), [(1, 0), (1, 1), (1, 4), (2, 1), (4, 0), (3, 2), (2, 5), (5, 3), (6, 4)]
)
def test_the_loss_and_its_gradient_are_those_of_all_alignments_one_by_one(frames, characters):
    logits, labels = case(frames, characters)
    loss = rnnt_loss(logits, labels, torch.tensor([frames]), torch.tensor([characters]))
    expected = by_enumeration(logits[0], labels[0])
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    here, there = (torch.autograd.grad(value, logits)[0] for value in (loss.sum(), expected))
    assert torch.allclose(here, there, atol=1e-12)


def test_samples_of_other_lengths_in_one_batch_do_not_touch_each_other():
    shapes = [(6, 4), (3, 4), (6, 0), (1, 2), (5, 3)]
    logits, labels = case(6, 4, n=len(shapes), seed=2)
    lengths, label_lengths = torch.tensor(shapes).unbind(1)
    losses = rnnt_loss(logits, labels, lengths, label_lengths)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    for k, (frames, characters) in enumerate(shapes):
        own = logits[k, :frames, : characters + 1].detach().requires_grad_()
        expected = by_enumeration(own, labels[k])
        assert losses[k].item() == pytest.approx(expected.item(), rel=1e-12)
        (of_own,) = torch.autograd.grad(expected * weights[k], own)
        assert torch.allclose(gradient[k, :frames, : characters + 1], of_own, atol=1e-12)
        assert not gradient[k, frames:].any()
        assert not gradient[k, :, characters + 1 :].any()


def test_long_sequences_and_extreme_logits_stay_finite():
    rng = torch.Generator().manual_seed(0)
    logits = (torch.randn((2, 300, 121, 5), generator=rng) * 60).requires_grad_()
    labels = torch.randint(1, 5, (2, 120), generator=rng)
    losses = rnnt_loss(logits, labels, torch.tensor([300, 7]), torch.tensor([120, 120]))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits.grad).all()
    # Of a sure path: every frame has one blank, and every label is emitted once.
    assert logits.grad.abs().max() <= 1.001


def test_half_precision_is_summed_in_single():
    logits, labels = case(5, 3, n=2)
    lengths = torch.tensor([5, 4]), torch.tensor([3, 2])
    half = logits.detach().bfloat16().requires_grad_()
    losses = rnnt_loss(half, labels, *lengths)
    losses.sum().backward()
    assert losses.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    assert torch.allclose(losses.double(), rnnt_loss(half.detach().double(), labels, *lengths), rtol=1e-5)


def test_shapes_that_do_not_belong_together_are_told():
    logits, labels = case(4, 3, n=2)
    with pytest.raises(ValueError, match=r"labels \(2, 2\).*\(n, T, U \+ 1, symbols\)"):
        rnnt_loss(logits, labels[:, :2], torch.tensor([4, 4]), torch.tensor([2, 2]))


def test_padding_changes_neither_the_logits_before_it_nor_the_loss():
    torch.manual_seed(0)
    model = SMALL.model().eval()
    alone = Batch(
        np.arange(1),
        torch.randn(1, 11, 240),
        torch.randint(1, 29, (1, 4)),
        0,
        {"lengths": torch.tensor([11]), "label_lengths": torch.tensor([4])},
    )
    padded = Batch(
        alone.ids,
        torch.nn.functional.pad(alone.data, (0, 0, 0, 8)),
        torch.nn.functional.pad(alone.labels, (0, 3)),
        0,
        dict(alone.extra),
    )
    one, other = (model(batch.data, batch.labels, batch.extra["lengths"]) for batch in (alone, padded))
    assert (one.shape, other.shape) == ((1, 6, 5, 29), (1, 10, 8, 29))
    assert torch.allclose(one, other[:, :6, :5], atol=1e-6)
    assert SMALL.loss(model, alone).item() == pytest.approx(SMALL.loss(model, padded).item(), rel=1e-5)


def test_the_model_has_the_size_of_mlperfs():
    with torch.device("meta"):
        model = RNNT().model()
    assert [model.first.num_layers, model.second.num_layers, model.predictor.num_layers] == [2, 3, 2]
    assert (model.first.input_size, model.second.input_size) == (240, 2048)
    # MLPerf's has 49 million with 1 024 word pieces: here 28 characters need two smaller tables.
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(48e6, rel=0.03)


@pytest.mark.process
def test_the_loss_falls_on_generated_speech(tmp_path):
    samples = LibriSpeechLike("speech", samples=12, scale=0.05).open(tmp_path, lambda *said: None).samples
    step = make_step(SMALL, {"kind": "cpu"}, seed=0)
    step.warm_up()
    with PyTorchLoader(samples=samples, transform=SMALL.transform, batch_size=3, seed=0, num_workers=1) as loader:
        for epoch in range(12):
            for batch in loader.epoch(epoch):
                step(batch)
    losses = torch.stack(step.losses).view(12, 4).mean(dim=1)
    assert torch.isfinite(losses).all()
    assert losses[-2:].mean() < 0.7 * losses[0]


@pytest.mark.parametrize(("name", "heavy_ms"), [("speech_3s", 3000), ("speech_10s", 10_000)])
def test_the_times_of_speech_are_distributed_as_published(name, heavy_ms):
    workload = configured(name)
    light, heavy = workload.transform.transforms[-2:]
    ms = np.array([light.seconds_for(k) + heavy.seconds_for(k) for k in range(1000)]) * 1000
    # Table 2 of the MinatoLoader paper; its other steps take 8 ms, and its share of heavy samples is 0.196.
    published = {"speech_3s": (998, 508, 509, 3008, 502, 3017, 992)}
    published["speech_10s"] = (2351, 508, 509, 10008, 502, 10014, 3757)
    here = (ms.mean(), *np.quantile(ms, (0.5, 0.75, 0.9)), ms.min(), ms.max(), ms.std())
    assert here == pytest.approx(published[name], rel=0.03)
    assert set(ms.tolist()) == {500.0, float(heavy_ms)}


def test_the_workloads_go_through_the_steps_of_table_1():
    names = ["Pad", "SpecAugment", "FilterBank", "FrameSplicing", "PermuteAudio"]
    assert [step.name for step in configured("rnnt").transform.transforms] == names
    for name in ("speech_3s", "speech_10s"):
        workload = configured(name)
        assert (workload.name, workload.batch_size, workload.input_size) == (name, 24, None)
        assert [step.name for step in workload.transform.transforms] == [*names, "LightStep", "HeavyStep"]


def test_an_emulated_step_is_assumed_for_none_is_published():
    workload = configured("speech_3s")
    with pytest.raises(ConfigError, match=r"speech_3s .*accelerator\.seconds_per_sample"):
        make_step(workload, {"kind": "emulated"}, seed=0)
    step = make_step(workload, {"kind": "emulated", "seconds_per_sample": 0.002}, seed=0)
    assert (step.seconds_per_sample, step.citation) == (0.002, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": torch.zeros(2, 3, 32, 32)}, r"\(2, 3, 32, 32\), .*\(n, T, 240\)"),
        ({"extra": {"lengths": torch.tensor([4, 4])}}, "'label_lengths'"),
        ({"extra": {"lengths": torch.tensor([4, 0]), "label_lengths": torch.tensor([1, 1])}}, "frame"),
        ({"labels": torch.tensor([[1, 29], [1, 0]])}, "label 29, .*0 to 28"),
    ],
)
def test_a_batch_that_the_model_cannot_take_is_told(change, says):
    whole = {
        "ids": np.arange(2),
        "data": torch.zeros(2, 4, 240),
        "labels": torch.tensor([[1, 2], [1, 0]]),
        "nbytes": 0,
        "extra": {"lengths": torch.tensor([4, 3]), "label_lengths": torch.tensor([2, 1])},
    }
    SMALL.check(Batch(**whole))
    with pytest.raises(CellError, match=says):
        SMALL.check(Batch(**{**whole, **change}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0), ("encoder_size", 1.5), ("heavy_share", 1.1), ("time_scale", -1), ("light_s", math.nan),
        ("passing", "wait"), ("typical_s", "long"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"^workloads\.rnnt\.{key}="):
        RNNT(**{key: value})


def test_a_heavy_step_that_includes_a_longer_light_one_is_refused():
    with pytest.raises(ConfigError, match=r"heavy_s=0\.3: .*light_s=0\.5"):
        RNNT(light_s=0.5, heavy_s=0.3, heavy_includes_light=True)


def test_forget_gates_begin_open():
    model = Transducer(features=4, symbols=5, encoder_size=3, predictor_size=3, joint_size=3)
    both = model.first.bias_ih_l1 + model.first.bias_hh_l1
    assert both[3:6].tolist() == [1.0, 1.0, 1.0]


def test_time_scale_and_the_share_of_heavy_samples_are_those_of_the_config():
    workload = RNNT(light_s=0.5, heavy_s=3.0, heavy_share=0.25, time_scale=0.01, passing="spin")
    light, heavy = workload.transform.transforms[-2:]
    assert (light.passing, heavy.passing) == ("spin", "spin")
    # In the words of section 2.2, HeavyStep comes on top.
    assert [light.seconds_for(k) + heavy.seconds_for(k) for k in range(4)] == pytest.approx([0.005] * 3 + [0.035])
