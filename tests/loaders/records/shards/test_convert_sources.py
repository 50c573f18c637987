"""Each kind of source, as it is listed and as it is stored."""

from __future__ import annotations

import io
import json
import os
import wave
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loaders.errors import LoaderConfigError, LoaderError, SampleError
from loaders.records.shards.convert import (
    SampleListing,
    audio_folder,
    coco,
    convert_source,
    image_tree,
    numpy_volumes,
)
from loaders.records.shards.example import Feature, decode_example
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import verify_folder
from loaders.records.shards.tfrecord import read_records


def _picture(kind: str = "JPEG", seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def _write(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def _stored(source: SampleListing, out: Path) -> dict[int, tuple[int, bytes, Mapping[str, Feature]]]:
    """Convert, check the whole folder, and return label, payload and features of every sample by id."""
    convert_source(source, out, shard_bytes=5000)
    verify_folder(out)
    found = {}
    for shard in ShardSet.open(out).shards:
        data = shard.path.read_bytes()
        for row, payload in zip(shard.records, read_records(shard.path), strict=True):
            start = row["offset"] + row["image"]
            example = decode_example(payload)
            found[int(row["id"])] = int(row["label"]), data[start : start + row["image_size"]], example
            assert example["id"] == [row["id"]]
    assert sorted(found) == list(range(len(source.items)))
    return found


def test_an_image_tree_is_labelled_by_its_class_folders_in_order(tmp_path: Path) -> None:
    files = {
        "tree/b/2.png": _picture("PNG"),
        "tree/a/deep/1.JPG": _picture(seed=1),
        "tree/c/3.jpeg": _picture(seed=2),
        "tree/c/notes.txt": b"",
        "tree/.hidden/4.jpg": b"",
        "tree/a/.5.jpg": b"",
    }
    source = image_tree(_write(tmp_path, files) / "tree")
    assert source.classes == ("a", "b", "c") and source.ignored == 1
    assert [item.name for item in source.items] == ["a/deep/1.JPG", "b/2.png", "c/3.jpeg"]
    stored = _stored(source, tmp_path / "out")
    for sample_id, (label, payload, example) in stored.items():
        assert label == sample_id and example["image/class/label"] == [label]
        assert example["image/path"] == [source.items[sample_id].name.encode()]
        assert payload == files[f"tree/{source.items[sample_id].name}"] == example["image/encoded"][0]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["classes"] == ["a", "b", "c"]


def test_images_without_class_folders_have_no_label(tmp_path: Path) -> None:
    stored = _stored(image_tree(_write(tmp_path / "tree", {"1.jpg": _picture()})), tmp_path / "out")
    assert stored[0][0] == -1


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    tree = _write(tmp_path / "tree", {"a/1.jpg": _picture()})
    (tree / "a/again").symlink_to(tree)
    (tree / "b").symlink_to(_write(tmp_path / "elsewhere", {"2.jpg": _picture()}))
    assert [item.name for item in image_tree(tree).items] == ["a/1.jpg", "b/2.jpg"]


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    source = image_tree(_write(tmp_path / "tree", {f"a/{name}": _picture()}))
    assert _stored(source, tmp_path / "out")[0][2]["image/path"] == [b"a/caf\xe9.jpg"]


def _coco(tmp_path: Path, **changes: object) -> Path:
    content = {
        "images": [
            {"id": 7, "file_name": "b.jpg", "width": 30, "height": 20},
            {"id": 900_000_000_000, "file_name": "a.jpg", "width": 30, "height": 20},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 18, "bbox": [3, 5, 6, 10], "area": 50.5, "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 15, 20], "iscrowd": 1, "segmentation": [[1, 2]]},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        **changes,
    }
    pictures = {"coco/val/a.jpg": _picture(seed=1), "coco/val/b.jpg": _picture(seed=2)}
    return _write(tmp_path, {**pictures, "coco/annotations/instances_val.json": json.dumps(content).encode()}) / "coco"


def test_coco_keeps_boxes_classes_and_all_annotations(tmp_path: Path) -> None:
    source = coco(_coco(tmp_path))
    stored = _stored(source, tmp_path / "out")
    assert source.classes == ("car", "dog")
    label, payload, without = stored[0]
    assert label == -1 and payload == (tmp_path / "coco/val/a.jpg").read_bytes()
    assert without["image/source_id"] == [b"900000000000"] and without["image/object/bbox/xmin"] == []
    label, payload, example = stored[1]
    assert label == 0 and payload == (tmp_path / "coco/val/b.jpg").read_bytes()  # the car's box is the largest
    assert example["image/object/bbox/xmin"] == pytest.approx([0.1, 0.0])
    assert example["image/object/bbox/xmax"] == pytest.approx([0.3, 0.5])
    assert example["image/object/bbox/ymin"] == pytest.approx([0.25, 0.0])
    assert example["image/object/bbox/ymax"] == pytest.approx([0.75, 1.0])
    assert example["image/object/class/label"] == [1, 0]
    assert example["image/object/class/text"] == [b"dog", b"car"]
    assert example["image/object/is_crowd"] == [0, 1]
    assert example["image/object/area"] == pytest.approx([50.5, 300])
    assert (example["image/height"], example["image/width"]) == ([20], [30])
    assert json.loads(example["image/annotations"][0])[1]["segmentation"] == [[1, 2]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": [{"id": 7, "file_name": "gone.jpg", "width": 1, "height": 1}]}, r"gone\.jpg: "),
        ({"annotations": [{"image_id": 5, "category_id": 3}]}, r"instances_val\.json: .*image 5"),
        ({"categories": []}, r"instances_val.json: .*category 3 of image 7"),
        ({"images": []}, r"instances_val\.json: .*image"),
        ({"images": "none"}, r"instances_val\.json: .*`images`"),
        ({"images": [{"id": 7}]}, r"instances_val\.json: .*KeyError: 'file_name'"),
        ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [1]}]}, "four numbers"),
        ({"images": [{"id": 7, "file_name": "../b.jpg", "width": 1, "height": 1}]}, r"\.\./b\.jpg"),
        ({"annotations": [7]}, r"instances_val\.json: "),
    ],
)
def test_what_coco_lacks_is_named(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(LoaderConfigError, match=says):
        coco(_coco(tmp_path, **changes))


def test_cocos_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    root = _coco(tmp_path)
    with pytest.raises(LoaderConfigError, match=r"other\.json"):
        coco(root, root / "other.json")
    (root / "annotations/instances_train.json").write_text('{"images": [')
    with pytest.raises(LoaderConfigError, match=r"instances_train.json, instances_val.json"):
        coco(root)
    with pytest.raises(LoaderConfigError, match=r"instances_train.json"):
        coco(root, root / "annotations/instances_train.json")


def _volume(example: Mapping[str, Feature], name: str = "volume") -> np.ndarray:
    (dtype,), (data,) = example[f"{name}/dtype"], example[f"{name}/encoded"]
    return np.frombuffer(data, dtype.decode()).reshape(example[f"{name}/shape"])  # type: ignore


@pytest.mark.parametrize(
    "volume",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.arange(5, dtype=">f8"),
        np.arange(4, dtype=np.float16),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array(5, np.uint8),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_volume_keeps_its_numbers(tmp_path: Path, volume: np.ndarray, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"a{suffix}"
    np.save(path, volume) if suffix == ".npy" else np.savez_compressed(path, x=volume)
    label, payload, example = _stored(numpy_volumes(tmp_path / "in"), tmp_path / "out")[0]
    assert label == -1 and payload == example["volume/encoded"][0]
    stored = _volume(example)
    assert stored.shape == volume.shape and (stored == volume).all() and stored.dtype.name == volume.dtype.name


def test_pairs_and_archives_keep_masks_and_labels(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    volume, mask = np.random.default_rng(0).random((3, 4, 5)), np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    np.save(folder / "case_1_x.npy", volume)
    np.save(folder / "case_1_y.npy", mask)
    np.savez(folder / "case_2.npz", x=volume, y=mask)
    np.savez(folder / "case_3.npz", x=volume, y=np.int64(4))
    np.savez(folder / "case_4.npz", volume)
    source = numpy_volumes(folder)
    assert [item.name for item in source.items] == ["case_1_x.npy", "case_2.npz", "case_3.npz", "case_4.npz"]
    stored = _stored(source, tmp_path / "out")
    assert [stored[sample_id][0] for sample_id in range(4)] == [-1, -1, 4, -1]
    for sample_id in range(4):
        example = stored[sample_id][2]
        assert (_volume(example) == volume).all()
        assert ("mask/encoded" in example) == (sample_id < 2)
        if sample_id < 2:
            assert (_volume(example, "mask") == mask).all()


def _wav(frames: int = 100) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 16_000, frames, "NONE", ""))
        file.writeframes(bytes(2 * frames))
    return buffer.getvalue()


def test_recordings_are_labelled_and_keep_their_transcripts(tmp_path: Path) -> None:
    files = {
        "in/84/121/84-121-0000.flac": b"fLaC" + bytes(50),
        "in/84/121/84-121-0001.flac": b"fLaC" + bytes(60),
        "in/84/121/84-121.trans.txt": b"84-121-0001 ONE MORE\n84-121-0000 GO ON\n",
        "in/no/a.wav": _wav(),
        "in/no/b.mp3": b"ID3" + bytes(40),
    }
    source = audio_folder(_write(tmp_path, files) / "in")
    assert source.classes == ("84", "no")
    stored = _stored(source, tmp_path / "out")
    assert [stored[sample_id][0] for sample_id in range(4)] == [0, 0, 1, 1]
    assert stored[0][2]["audio/text"] == [b"GO ON"] and stored[1][2]["audio/text"] == [b"ONE MORE"]
    assert "audio/text" not in stored[2][2] and stored[2][2]["audio/format"] == [b"wav"]
    for sample_id, item in enumerate(source.items):
        assert stored[sample_id][1] == files[f"in/{item.name}"] == stored[sample_id][2]["audio/encoded"][0]


def test_a_recording_without_its_line_is_named(tmp_path: Path) -> None:
    folder = _write(tmp_path, {"a/1-2-3.flac": b"fLaC", "a/1-2.trans.txt": b"1-2-4 OTHER\n"})
    with pytest.raises(LoaderConfigError, match=r"1-2-3\.flac"):
        audio_folder(folder)


_WHOLE = {"image": _picture(), "png": _picture("PNG"), "wav": _wav()}


@pytest.mark.parametrize(
    ("scan", "name", "content", "says"),
    [
        (image_tree, "a.jpg", b"", "no JPEG or PNG file"),
        (image_tree, "a.jpg", b"<html>not found</html>", "no JPEG or PNG file"),
        (image_tree, "a.jpg", _WHOLE["image"][:-300], "the image is cut short"),
        (image_tree, "a.png", _WHOLE["png"][:-5], "the image is cut short"),
        (numpy_volumes, "a.npy", b"", "no whole NumPy array"),
        (numpy_volumes, "a.npy", b"no array at all, but some bytes", "no whole NumPy array"),
        (numpy_volumes, "a.npz", b"PK\x03\x04 cut short", "no whole .npz file"),
        (audio_folder, "a.wav", b"ID3 renamed", "no wav file"),
        (audio_folder, "a.wav", _WHOLE["wav"][:-50], "cut short at 194 of 244 bytes"),
        (audio_folder, "a.flac", b"", r"no flac file \(empty\)"),
    ],
)
def test_a_file_that_is_not_whole_is_named(
    tmp_path: Path, scan: Callable[[Path], SampleListing], name: str, content: bytes, says: str
) -> None:
    _write(tmp_path / "in", {name: content})
    with pytest.raises(SampleError, match=f"in/{name}"):
        convert_source(scan(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _with_thumbnail(image: bytes) -> bytes:
    """A picture with another whole one in its EXIF segment, which starts right behind the first two bytes."""
    inner = b"Exif\0\0" + _picture(seed=7)
    return image[:2] + b"\xff\xe1" + (len(inner) + 2).to_bytes(2, "big") + inner + image[2:]


def test_a_thumbnail_does_not_make_a_cut_picture_whole(tmp_path: Path) -> None:
    image = _with_thumbnail(_WHOLE["image"])
    assert Image.open(io.BytesIO(image)).size == (30, 20)
    tree = _write(tmp_path / "in", {"a.jpg": image})
    convert_source(image_tree(tree), tmp_path / "whole")
    (tree / "a.jpg").write_bytes(image[:-100])
    with pytest.raises(SampleError, match="the image is cut short"):
        convert_source(image_tree(tree), tmp_path / "out")


def test_whatever_follows_a_picture_is_kept(tmp_path: Path) -> None:
    image = _WHOLE["image"] + b"a film \xff\xda of some seconds"
    tree = _write(tmp_path / "in", {"a.jpg": image})
    assert _stored(image_tree(tree), tmp_path / "out")[0][1] == image


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([{}], object), np.zeros(2, "i4,f4")])
def test_arrays_of_no_numbers_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(SampleError, match=r"a\.npy: "):
        numpy_volumes(tmp_path)


def test_a_volume_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.npy"
    path.parent.mkdir()
    np.save(path, np.zeros(1000))
    os.truncate(path, 4000)
    with pytest.raises(SampleError, match=r"a\.npy"):
        numpy_volumes(path.parent)
    path.unlink()
    path = path.with_name("b.npz")
    np.savez(path, x=np.zeros(1000))
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SampleError, match=r"b\.npz: .*CRC"):
        convert_source(numpy_volumes(path.parent), tmp_path / "out")


def test_a_sample_larger_than_protobuf_reads_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**31,)})
        file.truncate(file.tell() + 2**31)
    with pytest.raises(SampleError, match=r"huge\.npy: .*2147483647"):
        numpy_volumes(tmp_path / "in")


def test_a_mask_that_only_one_volume_lacks_is_named(tmp_path: Path) -> None:
    for name in ("1_x", "1_y", "2_x"):
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    with pytest.raises(LoaderConfigError, match=r"2_x.npy: 2_y.npy"):
        numpy_volumes(tmp_path)


@pytest.mark.parametrize("scan", [image_tree, coco, numpy_volumes, audio_folder])
def test_an_empty_or_missing_folder_is_named(tmp_path: Path, scan: Callable[[Path], SampleListing]) -> None:
    with pytest.raises(LoaderError, match=str(tmp_path)):
        scan(tmp_path)
    with pytest.raises(LoaderConfigError, match="gone"):
        scan(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LoaderConfigError, match="file"):
        scan(tmp_path / "file")


@pytest.mark.parametrize("change", ["dangling", "folder", "gone", "grown"])
def test_a_file_that_cannot_be_read_or_changed_is_named(tmp_path: Path, change: str) -> None:
    tree = _write(tmp_path / "in", {"a/1.jpg": _picture(), "a/2.jpg": _picture()})
    source = None if change == "dangling" else image_tree(tree)
    (tree / "a/2.jpg").unlink()
    match change:
        case "dangling":
            (tree / "a/2.jpg").symlink_to(tree / "nowhere")
        case "folder":
            (tree / "a/2.jpg").mkdir()
        case "grown":
            (tree / "a/2.jpg").write_bytes(_picture() + b"x")
    with pytest.raises(SampleError, match=r"a/2\.jpg"):
        convert_source(source or image_tree(tree), tmp_path / "out")


def test_files_beside_class_folders_are_refused(tmp_path: Path) -> None:
    tree = _write(tmp_path, {"a/1.jpg": _picture(), "2.jpg": _picture()})
    with pytest.raises(LoaderConfigError, match=r"2.jpg"):
        image_tree(tree)
