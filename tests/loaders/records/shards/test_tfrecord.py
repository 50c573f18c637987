from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia.dali import fn, pipeline_def, tfrecord

from loaders.base import Samples
from loaders.errors import ShardError
from loaders.records.shards.index import ShardSet
from loaders.records.shards.tfrecord import check_record, count_intact, masked_crc32c, read_records, write_record


def _record(payload: bytes) -> bytearray:
    buffer = io.BytesIO()
    size, checksum = write_record(buffer, payload)
    stated = int.from_bytes(buffer.getvalue()[-4:], "little")
    assert size == len(buffer.getvalue()) and checksum == masked_crc32c(payload) == stated
    return bytearray(buffer.getvalue())


def test_the_checksum_is_masked_as_the_format_asks() -> None:
    # CRC-32C of RFC 3720, rotated right by 15 and increased: 0xE3069283 -> 0x2507C60D + 0xA282EAD8
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


@settings(deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=6))
def test_what_is_written_is_read(payloads: list[bytes]) -> None:
    records = [_record(payload) for payload in payloads]
    assert [bytes(check_record(bytes(record), "here")) for record in records] == payloads


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
    with pytest.raises(ShardError, match=f"a.tfrecord at byte {len(whole)}"):
        next(records)


def test_a_damaged_length_asks_for_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    record = _record(b"first")
    record[6] = 0x7F
    path.write_bytes(record)
    with pytest.raises(ShardError, match=r"a.tfrecord"):
        next(read_records(path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x1f\x8b\x08" + bytes(40), "a compressed file; write it again without compression"),
        (b"\xff\xd8\xff\xe0 this is a JPEG file of some bytes", "the file is damaged or no TFRecord"),
        (b"short", "the file ends within a record's header"),
    ],
)
def test_a_file_that_is_no_tfrecord_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(ShardError, match=r"a.tfrecord at byte 0"):
        next(read_records(tmp_path / "a.tfrecord"))


def test_a_length_beyond_the_file_asks_for_no_memory(tmp_path: Path) -> None:
    length = (2**62).to_bytes(8, "little")
    (tmp_path / "a.tfrecord").write_bytes(length + masked_crc32c(length).to_bytes(4, "little") + bytes(100))
    with pytest.raises(ShardError, match=str(2**62)):
        next(read_records(tmp_path / "a.tfrecord"))


def test_a_payload_in_parts_makes_the_same_record() -> None:
    buffer = io.BytesIO()
    size, _ = write_record(buffer, b"head", memoryview(b"payload"), b"")
    assert buffer.getvalue() == bytes(_record(b"headpayload")) and size == len(buffer.getvalue())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"gone\.tfrecord"):
        next(read_records(tmp_path / "gone.tfrecord"))
    with pytest.raises(ShardError, match="Is a directory"):
        next(read_records(tmp_path))


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


def test_whole_records_in_a_row_are_counted() -> None:
    file = io.BytesIO()
    sizes, checksums = zip(*[write_record(file, bytes([number]) * (number * 37)) for number in range(5)], strict=True)
    data = file.getvalue()
    assert count_intact(memoryview(data), checksums) == 5
    assert count_intact(memoryview(b""), checksums) == 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        whole = next(n for n in range(5) if sum(sizes[: n + 1]) > place)
        assert count_intact(memoryview(damaged), checksums) == whole
        cut = next((n for n in range(5) if sum(sizes[: n + 1]) > place), 5)
        assert count_intact(memoryview(data)[:place], checksums) == cut


def test_whole_records_other_than_those_expected_are_not_counted() -> None:
    file = io.BytesIO()
    checksums = [write_record(file, bytes([number]) * 9)[1] for number in range(3)]
    data = memoryview(file.getvalue())
    for payloads in (True, False):
        assert count_intact(data, checksums, payloads=payloads) == 3
        assert count_intact(data, [checksums[0], checksums[2], checksums[1]], payloads=payloads) == 1
        assert count_intact(data, [0], payloads=payloads) == 0
