from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia.dali import fn, pipeline_def, tfrecord

from loaders.base import Samples
from loaders.streaming.errors import ShardError
from loaders.streaming.example import decode_example, encode_image_example
from loaders.streaming.index import ShardSet
from loaders.streaming.tfrecord import check_record, masked_crc32c, read_records, write_record


def _record(payload: bytes) -> bytearray:
    buffer = io.BytesIO()
    assert write_record(buffer, payload) == len(buffer.getvalue())
    return bytearray(buffer.getvalue())


@settings(deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=6))
def test_what_is_written_is_read(payloads: list[bytes]) -> None:
    records = [_record(payload) for payload in payloads]
    assert [bytes(check_record(bytes(record), "here")) for record in records] == payloads


def test_the_checksum_is_masked_as_the_format_asks() -> None:
    # rotated right by 15 and increased: 0xE3069283 -> 0x2507C60D + 0xA282EAD8
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


@settings(deadline=None)
@given(payload=st.binary(min_size=1, max_size=200), data=st.data())
def test_one_changed_bit_is_found(payload: bytes, data: st.DataObject) -> None:
    record = _record(payload)
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ShardError, match=r"^here: "):
        check_record(bytes(record), "here")


@pytest.mark.parametrize("cut", [1, 5, 15, 20])
def test_a_file_that_is_cut_short_is_named_with_the_place(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tfrecord"
    whole = _record(b"first")
    path.write_bytes(bytes(whole) + bytes(_record(b"second"))[:-cut])
    records = read_records(path)
    assert next(records) == b"first"
    with pytest.raises(ShardError, match=f"a.tfrecord at byte {len(whole)}: the file ends within"):
        next(records)


def test_a_damaged_length_asks_for_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    record = _record(b"first")
    record[6] = 0x7F
    path.write_bytes(record)
    with pytest.raises(ShardError, match="length does not match"):
        next(read_records(path))


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(max_size=300))
def test_an_example_holds_what_was_put_in(sample_id: int, label: int, path: str, image: bytes) -> None:
    path = path.encode(errors="ignore").decode()
    payload, image_at = encode_image_example(sample_id=sample_id, label=label, path=path, image=image)
    assert payload[image_at:] == image
    assert decode_example(payload) == {
        "id": [sample_id],
        "image/class/label": [label],
        "image/path": [path.encode()],
        "image/encoded": [image],
    }


def test_packed_and_plain_lists_are_read() -> None:
    entry = bytes.fromhex("0a0161 1206 1a04 0a02 0a14".replace(" ", ""))  # a: int64 [10, 20] packed
    plain = bytes.fromhex("0a0162 1206 1a04 080a 0814".replace(" ", ""))  # b: int64 [10, 20]
    floats = bytes.fromhex("0a0163 1208 1206 0a04 0000803f".replace(" ", ""))  # c: float [1.0] packed
    features = b"".join(b"\x0a" + bytes([len(part)]) + part for part in (entry, plain, floats))
    assert decode_example(b"\x0a" + bytes([len(features)]) + features) == {"a": [10, 20], "b": [10, 20], "c": [1.0]}


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_a_malformed_example_is_an_error_of_ours(payload: bytes) -> None:
    with suppress(ShardError):
        decode_example(payload)


def test_another_reader_sees_the_same_samples(shards: Path, samples: Samples, tmp_path: Path) -> None:
    """DALI parses TFRecord and Example with code of its own."""
    parts = ShardSet.open(shards).shards
    for shard in parts:
        lines = [f"{row['offset']} {row['size']}\n" for row in shard.records]
        (tmp_path / f"{shard.path.name}.idx").write_text("".join(lines))

    @pipeline_def
    def pipeline() -> object:
        read = fn.readers.tfrecord(
            path=[str(shard.path) for shard in parts],
            index_path=[str(tmp_path / f"{shard.path.name}.idx") for shard in parts],
            features={
                "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
                "id": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
        )
        return read["image/encoded"], read["image/class/label"], read["id"]

    running = pipeline(batch_size=len(samples), num_threads=1, device_id=None)
    encoded, labels, ids = running.run()
    seen = [int(np.array(ids.at(index))[0]) for index in range(len(samples))]
    assert sorted(seen) == list(range(len(samples)))
    for index, sample_id in enumerate(seen):
        assert np.array(encoded.at(index)).tobytes() == samples.path(sample_id).read_bytes()
        assert int(np.array(labels.at(index))[0]) == samples.labels[sample_id]
