"""What `convert --from` stores of COCO, NumPy volumes and recordings is what the workloads' pipelines take."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import torch
from PIL import Image

from loaders.base import Samples
from loaders.pipeline import Pipeline, load_item
from loaders.pipelines.crop3d import RandomCrop
from loaders.pipelines.detection import DetectionPipeline
from loaders.pipelines.segmentation import SegmentationPipeline
from loaders.pipelines.speech import SpeechPipeline
from loaders.records.shards.convert import SampleListing, audio_folder, coco, convert_source, numpy_volumes
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

COUNT = 5


def _samples(root: Path, paths: list[str], **columns: pa.Array) -> Samples:
    sizes = np.array([(root / path).stat().st_size for path in paths])
    return Samples(root, tuple(paths), np.zeros(len(paths), np.int64), sizes, columns)


def _coco(root: Path) -> tuple[SampleListing, Samples, Pipeline]:
    (root / "val").mkdir()
    (root / "annotations").mkdir()
    entries: list[dict[str, Any]] = []
    boxes: list[list[list[float]]] = []
    segments: list[list[list[list[float]]]] = []
    for k in range(COUNT):
        pixels = np.random.default_rng(k).integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(pixels).save(root / "val" / f"{k}.jpg")
        outline = [10.0, 5.0, 30.0, 5.0, 30.0, 25.0]
        entries += [
            {"image_id": k, "category_id": 3, "bbox": [10, 5, 20, 20], "segmentation": [outline], "iscrowd": 0}
            for _ in range(k)
        ]
        # A crowd and what lies beyond the edge are left out, what reaches over it is cut.
        entries.append({"image_id": k, "category_id": 3, "bbox": [0, 0, 9, 9], "segmentation": {}, "iscrowd": 1})
        entries.append({"image_id": k, "category_id": 3, "bbox": [70, 0, 9, 9], "segmentation": [], "iscrowd": 0})
        entries.append({"image_id": k, "category_id": 1, "bbox": [50, 0, 20, 9], "segmentation": [], "iscrowd": 0})
        boxes.append([[10.0, 5.0, 20.0, 20.0]] * k + [[50.0, 0.0, 10.0, 9.0]])
        segments.append([[outline]] * k + [[]])
    content = {
        "images": [{"id": k, "file_name": f"{k}.jpg", "width": 60, "height": 40} for k in range(COUNT)],
        "annotations": entries,
        "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
    }
    (root / "annotations" / "instances_val.json").write_text(json.dumps(content))
    samples = _samples(
        root / "val",
        [f"{k}.jpg" for k in range(COUNT)],
        boxes=pa.array(boxes),
        categories=pa.array([[3] * k + [1] for k in range(COUNT)]),
        segments=pa.array(segments),
    )
    return coco(root), samples, DetectionPipeline(min_size=32, max_size=48)


def _volumes(root: Path) -> tuple[SampleListing, Samples, Pipeline]:
    for k in range(COUNT):
        rng = np.random.default_rng(k)
        shape = (1, 9, 10, 11 + k)
        volume = rng.standard_normal(shape, np.float32)
        np.save(root / f"case_{k}_x.npy", np.asfortranarray(volume) if k == 2 else volume)
        np.save(root / f"case_{k}_y.npy", rng.integers(0, 3, shape).astype(np.uint8))
    labels = pa.array([f"case_{k}_y.npy" for k in range(COUNT)])
    samples = _samples(root, [f"case_{k}_x.npy" for k in range(COUNT)], label_path=labels)
    return numpy_volumes(root), samples, SegmentationPipeline(crop=RandomCrop(8))


def _recordings(root: Path) -> tuple[SampleListing, Samples, Pipeline]:
    folder = root / "84" / "121"
    folder.mkdir(parents=True)
    words = ["GO ON", "IT'S", "NO", "WHO CAME", "A"]
    for k in range(COUNT):
        buffer = io.BytesIO()
        wave = 0.1 * np.random.default_rng(k).standard_normal(3000 + 400 * k).astype(np.float32)
        soundfile.write(buffer, wave, 16_000, format="FLAC")
        (folder / f"84-121-000{k}.flac").write_bytes(buffer.getvalue())
    lines = [f"84-121-000{k} {text}\n" for k, text in enumerate(words)]
    (folder / "84-121.trans.txt").write_text("".join(lines))
    samples = _samples(root, [f"84/121/84-121-000{k}.flac" for k in range(COUNT)], transcript=pa.array(words))
    return audio_folder(root), samples, SpeechPipeline()


@pytest.mark.parametrize("make", [_coco, _volumes, _recordings])
def test_a_converted_source_gives_what_its_files_give(
    start_daemon: Callable[..., Any], tmp_path: Path, make: Callable[[Path], tuple[SampleListing, Samples, Pipeline]]
) -> None:
    (tmp_path / "in").mkdir()
    source, samples, pipeline = make(tmp_path / "in")
    convert_source(source, tmp_path / "out")
    endpoint = start_daemon(tmp_path / "out").endpoint
    seen = 0
    with StreamingLoader(endpoint=endpoint, transform=pipeline, batch_size=2, seed=1, warm_bytes=0) as loader:
        for batch in loader.epoch(1):
            expected = pipeline.collate([load_item(pipeline, samples, int(k), seed=1, epoch=1) for k in batch.ids])
            assert torch.equal(batch.data, expected.data) and torch.equal(batch.labels, expected.labels)
            assert all(torch.equal(batch.extra[name], tensor) for name, tensor in expected.extra.items())
            assert batch.extra.keys() == expected.extra.keys()
            seen += len(batch)
    assert seen == COUNT
