"""Any callable is a transform: functions, lambdas, torchvision's Compose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaders import DaliLoader, PyTorchLoader, SampleAwareLoader, SpdlLoader
from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError
from loaders.pipeline import Item
from loaders.pipeline.callables import CallablePipeline, as_pipeline
from loaders.records.shards.convert import convert
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

ALL = list(range(61))


def thumbnail(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.array(image.resize((4, 4)))


def draw(_: object) -> float:
    return float(torch.rand(()))


class Compose:
    """As torchvision's: it has `transforms`, and is no pipeline for that."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


def _batches(endpoint: str, transform: Any, **changed: object) -> Iterator[Any]:
    arguments = {"batch_size": 16, "seed": 5, "timeout_s": 20}
    with StreamingLoader(endpoint=endpoint, transform=transform, **(arguments | changed)) as loader:  # type: ignore[arg-type]
        yield from loader.epoch(0)


@pytest.mark.parametrize(
    ("transform", "decode"),
    [
        (thumbnail, "auto"),
        (thumbnail, "torch-process"),
        (lambda image: torch.from_numpy(thumbnail(image)), "torch"),
        (Compose([lambda image: image.resize((4, 4)), np.asarray, torch.tensor]), "auto"),
        (functools.partial(functools.partial(thumbnail)), "auto"),
    ],
)
def test_a_callable_takes_the_decoded_image(daemon, samples: Samples, transform: Any, decode: str) -> None:
    seen = {}
    for batch in _batches(daemon.endpoint, transform, decode=decode):
        assert batch.labels.tolist() == [index % 7 for index in batch.ids.tolist()]
        seen.update(zip(batch.ids.tolist(), batch.data, strict=True))
    assert sorted(seen) == ALL
    for sample_id, data in seen.items():
        with Image.open(samples.path(sample_id)) as image:
            assert (data.numpy() == thumbnail(image.convert("RGB"))).all()


def test_torchvisions_compose_is_a_transform(daemon) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    compose = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    assert as_pipeline(compose).transforms[0].name == "Compose"
    (first, *_) = _batches(daemon.endpoint, compose)
    assert first.data.shape == (16, 3, 8, 8) and first.data.dtype == torch.float32


def test_arrays_reach_a_callable_as_arrays(start_daemon: Callable[..., Any], tmp_path: Path) -> None:
    for index in range(5):
        np.save(tmp_path / f"{index}.npy", np.full((2, 3), index))
    paths = tuple(f"{index}.npy" for index in range(5))
    sizes = np.array([(tmp_path / path).stat().st_size for path in paths])
    made = convert(Samples(tmp_path, paths, np.full(5, -1), sizes), tmp_path.with_name("arrays"), key="arrays")
    (batch,) = _batches(start_daemon(made).endpoint, np.sum)
    assert batch.data.tolist() == [6 * index for index in batch.ids.tolist()]


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda image: image, "failed in lambda: TypeError: .*Image"),
        (Compose([Image.Image.copy]), "failed in Compose: TypeError: .*Image"),
        (lambda image: image.nothing, "failed in lambda: AttributeError"),
        (lambda image: None, "failed in lambda: TypeError: .*NoneType"),
    ],
)
def test_what_a_callable_does_wrong_is_named_with_the_sample(daemon, transform: Any, says: str) -> None:
    with pytest.raises(SampleError, match=rf"sample \d+ \(.*\) {says}"):
        list(_batches(daemon.endpoint, transform))


def test_what_is_no_transform_or_cannot_be_sent_to_a_process_is_refused(daemon) -> None:
    with pytest.raises(LoaderConfigError, match="transform=7"):
        next(_batches(daemon.endpoint, 7))
    with pytest.raises(LoaderConfigError, match=r"decode=torch-process: .*decode=torch"):
        next(_batches(daemon.endpoint, lambda image: image, decode="torch-process"))


@pytest.mark.parametrize("loader", [PyTorchLoader, SpdlLoader, SampleAwareLoader, DaliLoader])
def test_the_loaders_of_files_take_callables(samples: Samples, loader: Any) -> None:
    options = {"operators": "python"} if loader is DaliLoader else {}
    with loader(samples=samples, transform=thumbnail, batch_size=16, seed=1, **options) as made:
        batches = list(made.epoch(0))
    assert sorted(i for batch in batches for i in batch.ids.tolist()) == ALL
    assert {tuple(batch.data.shape[1:]) for batch in batches} == {(4, 4, 3)}


class _Forgetful(CallablePipeline):
    """A pipeline with a step that forgets to return the item."""

    @property
    def transforms(self) -> tuple[Any, ...]:
        def normalise(item: Item) -> None:
            item.data = 0

        normalise.name = "normalise"  # type: ignore[attr-defined]
        return (normalise,)


@pytest.mark.parametrize("loader", [PyTorchLoader, SampleAwareLoader, None])
def test_a_step_that_returns_no_item_is_named(daemon, samples: Samples, loader: Any) -> None:
    with pytest.raises(SampleError, match="normalise: TypeError"):
        if loader is None:
            list(_batches(daemon.endpoint, _Forgetful(thumbnail)))
        else:
            with loader(samples=samples, transform=_Forgetful(thumbnail), batch_size=16, seed=1) as made:
                list(made.epoch(0))
