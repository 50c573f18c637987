"""The project's four pipelines in the order that AutoOrder gives them, on real files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loaders import ImageTransform, Samples
from loaders.pecan import Kind, TransformOrder, auto_order, reorder
from loaders.pecan.loader import PecanOptions, bytes_of, measure
from loaders.pipeline import Item, load_item
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.detection import DetectionPipeline
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.speech import FEATURES, SpeechPipeline
from loaders.pipeline.synthetic_load import HeavyStep, LightStep

STEPS = (LightStep(0.001), HeavyStep(0.002))


def weighed(pipeline: Any, samples: Samples) -> tuple[np.ndarray, str]:
    return measure(pipeline, samples, PecanOptions(batch_size=1, seed=0, num_workers=0, profile_samples=8))


def ordered(pipeline: Any, samples: Samples) -> tuple[TransformOrder, Any]:
    order = auto_order(pipeline.transforms, *weighed(pipeline, samples))
    return order, reorder(pipeline, order)


def item(pipeline: Any, samples: Samples, sample_id: int) -> Item:
    return load_item(pipeline, samples, sample_id, seed=3, epoch=1)


def test_speech_pads_last_and_gives_the_same_features(recordings: Samples) -> None:
    pipeline = SpeechPipeline(transforms=(*FEATURES, *STEPS))
    order, late = ordered(pipeline, recordings)
    assert [step.name for step in late.transforms] == [*(step.name for step in pipeline.transforms[1:]), "Pad"]
    assert order.placed[0].kind is Kind.INFLATIONARY
    for sample_id in range(len(recordings)):
        ours, theirs = item(late, recordings, sample_id), item(pipeline, recordings, sample_id)
        assert ours.data.shape == theirs.data.shape
        # The sums of a matrix product are taken in another order where it has another width.
        torch.testing.assert_close(ours.data, theirs.data, rtol=0, atol=2e-5)
        assert {k: v for k, v in ours.target.items() if k != "labels"} == {
            k: v for k, v in theirs.target.items() if k != "labels"
        }


def test_segmentation_and_images_are_in_the_best_order_already(
    volumes: Samples, image_tree: Callable[[int], Samples]
) -> None:
    for pipeline, samples in (
        (SegmentationPipeline(crop=RandomCrop(16)), volumes),
        (ImageTransform(24), image_tree(4)),
    ):
        order, same = ordered(pipeline, samples)
        assert not order.changes and same is pipeline
        assert order.placed[0].kind is Kind.DEFLATIONARY


@pytest.mark.parametrize("masks", [True, False])
def test_detection_resizes_last_the_pictures_that_grow_and_only_these(pictures: Samples, masks: bool) -> None:
    pipeline = DetectionPipeline(min_size=64, max_size=110, masks=masks)
    order, late = ordered(pipeline, pictures)
    assert (order.placed[0].kind, order.placed[0].before, order.placed[0].after) == (Kind.BY_SAMPLE, 1, 4)
    assert "4 of 8 samples grow" in order.placed[0].reason
    assert late.transforms[-1].name == "Resize (late)"
    std = torch.tensor(pipeline.std).view(3, 1, 1)
    for sample_id in range(len(pictures)):
        data, target = pipeline.decode(pipeline.read(pictures, sample_id), pictures, sample_id)
        kept = late.transforms[0](Item(sample_id, 3, 1, data, target)).data.size == data.size
        assert kept == (sample_id % 2 == 1)
        ours, theirs = item(late, pictures, sample_id), item(pipeline, pictures, sample_id)
        assert ours.data.shape == theirs.data.shape and ours.target.keys() == theirs.target.keys()
        if sample_id % 2 == 0:
            assert torch.equal(ours.data, theirs.data)
        else:
            # PIL rounds to grey levels in each of its two passes.
            assert ((ours.data - theirs.data) * std * 255).abs().max() < 1.5
        np.testing.assert_allclose(ours.target["boxes"], theirs.target["boxes"], atol=1e-4)
        if masks:
            mine, other = (np.unpackbits(each.target["masks"]) for each in (ours, theirs))
            # An edge is up to a pixel of the small picture off.
            assert (mine & other).sum() / (mine | other).sum() > (0.9 if sample_id % 2 else 0.999)


def test_moving_a_transform_does_not_change_what_it_draws(pictures: Samples) -> None:
    pipeline = DetectionPipeline(min_size=64, max_size=110, masks=False)
    _, late = ordered(pipeline, pictures)
    mirrored = [
        [
            bool(item(each, pictures, k).target["boxes"][0, 0] > item(each, pictures, k).target["boxes"][1, 0])
            for k in range(8)
        ]
        for each in (late, pipeline)
    ]
    assert mirrored[0] == mirrored[1] and set(mirrored[0]) == {True, False}


def test_a_pipeline_of_one_s_own_is_measured_and_ordered(Pipeline: Any, Times: Any, texts: Any) -> None:
    pipeline = Pipeline(
        (Times(1, "Same", frozenset({"Shrink"})), Times(3, "Grow"), Times(0.25, "Shrink", frozenset({"Grow"})))
    )
    order, late = ordered(pipeline, texts(100, 200, 300))
    assert [step.name for step in late.transforms] == ["Shrink", "Same", "Grow"]
    # Float32 of 200 numbers on average.
    assert [(one.bytes_in, one.bytes_out) for one in order.placed] == [(800, 800), (800, 2400), (2400, 600)]


def test_samples_that_fail_are_left_out_of_the_measurement(Pipeline: Any, Times: Any, texts: Any) -> None:
    samples = texts(100, 200, 300)
    samples.path(1).unlink()
    sizes, failure = weighed(Pipeline((Times(2, "Grow"),)), samples)
    assert sizes.tolist() == [[[400, 800]], [[1200, 2400]]] and "1.bin)" in failure
    for sample_id in (0, 2):
        samples.path(sample_id).unlink()
    assert len(weighed(Pipeline((Times(2, "Grow"),)), samples)[0]) == 0


def test_all_that_holds_bytes_counts(tmp_path: Any) -> None:
    nested = {"a": [np.zeros((2, 3), np.float32), b"four"], "b": (torch.zeros(5, dtype=torch.int64), "five!"), "c": 7}
    assert bytes_of(nested) == 24 + 4 + 40 + 5
