from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass

import msgpack
import numpy as np
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import WireError
from loaders.records.planner import Slice
from loaders.streaming.protocol import (
    MAX_PADDING,
    MAX_SLICES,
    BatchHeader,
    Get,
    Health,
    HealthReport,
    Hello,
    Refusal,
    ServedShard,
    ShardCatalog,
    Warm,
    Warmed,
    pack,
    pack_joined,
    pack_whole,
    unpack_answer,
    unpack_request,
)

number = st.integers(0, 2**63 - 1)
slices = st.lists(st.builds(Slice, number, number, number), min_size=1, max_size=5).map(tuple)
requests = st.one_of(
    st.just(Hello()),
    st.just(Health()),
    st.builds(Warm, number, st.integers(0, MAX_PADDING)),
    st.builds(Get, number, st.text(), number, number, slices, st.sampled_from(["raw", "msgpack"])),
)
shards = st.builds(ServedShard, st.text(), number, number, st.text())
replies = st.one_of(
    st.builds(
        ShardCatalog,
        st.text(),
        st.lists(st.builds(ServedShard, st.text(), number, number, st.text()), min_size=1).map(tuple),
    ),
    st.builds(Warmed, number),
    st.builds(Refusal, number, st.text()),
    st.builds(HealthReport, st.dictionaries(st.text(), number | st.floats(allow_nan=False) | st.text(), max_size=4)),
)


@settings(deadline=None)
@given(requests)
def test_a_request_arrives_as_it_was_sent(request: Hello | Health | Warm | Get) -> None:
    assert unpack_request(pack(request)) == request


@settings(deadline=None)
@given(replies)
def test_a_reply_arrives_as_it_was_sent(reply: ShardCatalog | Warmed | Refusal | HealthReport) -> None:
    assert unpack_answer([pack(reply)]) == (reply, [])
    assert unpack_answer([pack(reply), b"more"]) == (reply, [memoryview(b"more")])


@settings(deadline=None)
@given(number, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(st.binary(max_size=9), max_size=3))
def test_a_batch_arrives_as_it_was_sent_in_every_wire_format(
    sequence: int, values: list[int], records: list[bytes]
) -> None:
    array = np.array(values, np.int64)
    header = BatchHeader(sequence, 1, 2, array, array[::-1], array + 0, array + 0, array + 0)
    for frames in ([pack(header), *records], [pack_whole(header, records)], list(pack_joined(header, records))):
        reply, came = unpack_answer(frames)
        assert isinstance(reply, BatchHeader)
        assert (reply.sequence, reply.epoch, reply.batch) == (sequence, 1, 2)
        assert (reply.labels == array[::-1]).all()
        assert all((part == array).all() for part in (reply.ids, reply.offsets, reply.sizes, reply.checksums))
        assert [bytes(record) for record in came] == records


def test_a_batch_is_serialised_without_the_interpreters_lock() -> None:
    interval = sys.getswitchinterval()
    # No thread is made to give the lock up, so that another one runs only where it is released.
    sys.setswitchinterval(60)
    try:
        with ThreadPoolExecutor(1) as threads:
            assert any(_runs_beside_serialising(threads) for _ in range(100))
    finally:
        sys.setswitchinterval(interval)


def _runs_beside_serialising(threads: ThreadPoolExecutor) -> bool:
    began, empty = threading.Event(), np.zeros(0, np.int64)

    def serialise() -> None:
        began.set()
        pack_whole(BatchHeader(0, 0, 0, empty, empty, empty, empty, empty), [bytes(16 * 2**20)] * 2)

    serialising = threads.submit(serialise)
    began.wait()
    is_serialising = not serialising.done()
    serialising.result()
    return is_serialising


def _valid() -> list[bytes]:
    array = np.arange(6)
    header = BatchHeader(3, 1, 2, array, array, array, array, array)
    return [
        pack(Hello()),
        pack(Health()),
        pack(Warm(5, 1000)),
        pack(Get(1, "f" * 32, 2, 3, tuple(Slice(shard, 10 * shard, 8) for shard in range(20)))),
        pack(Get(2**62, "f", 2, 3, (Slice(2**62, 1, 1),), "msgpack")),
        pack(ShardCatalog("f" * 32, tuple(ServedShard(f"shard-{index}", 10, 1000, "d" * 32) for index in range(5)))),
        pack(Warmed(7)),
        pack(header),
        pack_whole(header, [b"record" * 20, b"other"]),
        pack_joined(header, [b"record" * 20, b"other"])[0],
        pack(Refusal(1, "why")),
        pack(HealthReport({"uptime_s": 1.5, "clients": 3})),
    ]


VERSION = msgpack.unpackb(msgpack.unpackb(pack(Hello()))[1])[0]
ONE_SLICE = np.array([0, 0, 1], "<i8").tobytes()
GET = {"kind": "get", "sequence": 0, "fingerprint": "", "epoch": 0, "batch": 0, "slices": ONE_SLICE}
BATCH = {"kind": "batch", "sequence": 0, "epoch": 0, "batch": 0} | dict.fromkeys(
    ("ids", "labels", "offsets", "sizes", "checksums"), ONE_SLICE
)


def _message(message: object, version: int = VERSION) -> bytes:
    body = msgpack.packb([version, message])
    return msgpack.packb((crc32c(body), body))


def mutated(count: int, seed: int) -> Iterator[bytes]:
    """Valid frames with bits flipped, bytes changed, cut out, put in or repeated, or the end cut off."""
    draw = random.Random(seed)
    valid = _valid()
    for _ in range(count):
        frame = bytearray(draw.choice(valid))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(frame) + 1)
            match draw.randrange(6):
                case 0 if at < len(frame):
                    frame[at] ^= 1 << draw.randrange(8)
                case 1 if at < len(frame):
                    frame[at] = draw.choice((0, 0x7F, 0x80, 0xC1, 0xC6, 0xDD, 0xDF, 0xFF))
                case 2:
                    del frame[at : at + draw.randrange(1, 9)]
                case 3:
                    frame[at:at] = draw.randbytes(draw.randrange(1, 9))
                case 4:
                    frame[at:at] = frame[at : at + draw.randrange(1, 40)]
                case _:
                    del frame[at:]
        yield bytes(frame)


KINDS = ("hello", "health", "warm", "get", "catalog", "warmed", "batch", "refusal", "report")


@pytest.mark.parametrize("unpack", [unpack_request, lambda frame: unpack_answer([frame])])
def test_ten_thousand_frames_that_are_wrong_are_messages_or_errors_of_ours(unpack) -> None:
    refused = 0
    for frame in mutated(10_000, seed=17):
        try:
            unpack(frame)
        except WireError:
            refused += 1
    assert refused > 5_000


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=20,
)
names = st.sampled_from([*GET, *BATCH, "padding", "reason", "fields", "shards", "check", "wire", "lengths"])
near_misses = st.builds(
    lambda kind, fields: {"kind": kind} | fields, st.sampled_from(KINDS), st.dictionaries(names, anything, max_size=9)
)


@settings(deadline=None)
@given(st.binary(max_size=200) | anything.map(msgpack.packb) | near_misses.map(_message))
def test_whatever_arrives_is_a_message_or_an_error_of_ours(data: bytes) -> None:
    for unpack in (unpack_request, *(lambda data, n=n: unpack_answer([data] * n)[0] for n in (1, 2))):
        try:
            message = unpack(data)
        except WireError:
            continue
        assert is_dataclass(message)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xc6\xff\xff\xff\xff",  # four gigabytes
        b"\x91" * 5000,  # lists in lists
        b"\xdf\x7f\xff\xff\xff" + b"\x00" * 50,
        _message([]),
        _message({}),
        _message({"kind": "get"}),
        _message(GET | {"sequence": True}),
        _message(GET | {"slices": b""}),
        _message(GET | {"slices": [[0, 0, 1]]}),
        _message(GET | {"slices": ONE_SLICE[1:]}),
        _message(GET | {"slices": ONE_SLICE * (MAX_SLICES + 1)}),
        _message(GET | {"slices": np.array([0, -1, 1], "<i8").tobytes()}),
        _message(GET | {"wire": "zip"}),
        _message(GET | {"wire": ["raw"]}),
        _message(GET | {"check": 1}),
        _message({"kind": "warm", "sequence": 0, "padding": MAX_PADDING + 1}),
        _message(BATCH),
        _message({"kind": "hello"}, version=1),
    ],
)
def test_a_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_request(data)


@pytest.mark.parametrize(
    "data",
    [
        _message(GET),
        _message(BATCH | {"ids": b"1234567"}),
        _message(BATCH | {"ids": bytes(16)}),
        _message(BATCH | {"ids": ["text"]}),
        _message({"kind": "catalog", "fingerprint": "", "shards": []}),
        _message({"kind": "catalog", "fingerprint": "", "shards": [{"name": "a", "records": 1}]}),
        _message({"kind": "report", "fields": 2}),
    ],
)
def test_a_malformed_reply_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_answer([data])
    with pytest.raises(WireError):
        unpack_answer([])


@pytest.mark.parametrize("lengths", [[3, 3], [8], [-1, 8], [2**62, 7], [], "text"])
def test_slices_that_are_not_the_frame_together_are_refused(lengths: list[int] | str) -> None:
    array = np.arange(2)
    header, joined = pack_joined(BatchHeader(3, 1, 2, array, array, array, array, array), [b"one", b"more"])
    _, fields = msgpack.unpackb(msgpack.unpackb(header)[1])
    fields["lengths"] = lengths if isinstance(lengths, str) else np.array(lengths, "<i8").tobytes()
    with pytest.raises(WireError, match="lengths"):
        unpack_answer([_message(fields), joined])
