"""PecanLoader: PyTorch's batches of the same samples, and an account of what was moved."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from loaders import LoaderConfigError, PecanLoader, PyTorchLoader, Samples
from loaders.pipeline.speech import SpeechPipeline


@pytest.mark.process
def test_batches_are_pytorch_s_and_the_order_is_told_and_logged(
    recordings: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    common: dict[str, Any] = {"samples": recordings, "batch_size": 3, "seed": 1, "num_workers": 1}
    with (
        caplog.at_level(logging.INFO, "loaders.pecan"),
        PecanLoader(transform=SpeechPipeline(), **common) as ours,
        PyTorchLoader(transform=SpeechPipeline(), **common) as theirs,
    ):
        for mine, other in zip(ours.epoch(2), theirs.epoch(2), strict=True):
            assert mine.ids.tolist() == other.ids.tolist() and torch.equal(mine.labels, other.labels)
            torch.testing.assert_close(mine.data, other.data, rtol=0, atol=2e-5)
        assert ours.stats().details["profile_s"] > 0 and ours.stats().samples == len(ours) == 8
    assert ours.notes[0] == "AutoOrder moves Pad from 1 to 5, of 5 transforms (5 samples measured)"
    assert any(note.startswith("Pad: ") and "inflationary, moved: to the end" in note for note in ours.notes)
    assert [note.partition(":")[0] for note in ours.notes[1:]] == ["Pad", "SpecAugment", "FilterBank"]
    assert str(ours.order) in caplog.text


def test_nothing_is_moved_where_nothing_can_be_measured(Pipeline: Any, Times: Any, texts: Any, tmp_path: Any) -> None:
    samples = texts(10, 20)
    for sample_id in (0, 1):
        samples.path(sample_id).unlink()
    pipeline = Pipeline((Times(2, "Grow", frozenset({"Same"})), Times(1, "Same")))
    with PecanLoader(
        samples=samples, transform=pipeline, batch_size=2, seed=0, num_workers=0, on_error="skip"
    ) as loader:
        assert loader.notes[0] == "AutoOrder moves nothing (0 samples measured)"
        assert list(loader.epoch(0)) == [] and len(loader.stats().skipped) == 2


@pytest.mark.parametrize(("argument", "value"), [("profile_samples", 0), ("batch_size", 0), ("num_workers", -1)])
def test_bad_arguments_are_refused_before_anything_is_measured(
    texts: Any, Pipeline: Any, argument: str, value: int
) -> None:
    arguments = {"samples": texts(10), "transform": Pipeline(()), "batch_size": 1, "seed": 0, argument: value}
    with pytest.raises(LoaderConfigError, match=f"{argument}={value}"):
        PecanLoader(**arguments)
