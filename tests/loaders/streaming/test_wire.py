from __future__ import annotations

from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.streaming.errors import WireError
from loaders.streaming.planner import Slice
from loaders.streaming.wire import (
    MAX_PADDING,
    BatchHeader,
    Catalog,
    Get,
    Hello,
    Refusal,
    pack,
    unpack_reply,
    unpack_request,
)

number = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(number, st.text(), number, number, st.lists(st.builds(Slice, number, number, number), min_size=1, max_size=5))
def test_a_request_arrives_as_it_was_sent(
    sequence: int, fingerprint: str, epoch: int, batch: int, slices: list[Slice]
) -> None:
    get = Get(sequence, fingerprint, epoch, batch, tuple(slices))
    assert unpack_request(pack(get)) == get
    assert unpack_request(pack(Hello(epoch % MAX_PADDING))) == Hello(epoch % MAX_PADDING)


@settings(deadline=None)
@given(number, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_a_reply_arrives_as_it_was_sent(sequence: int, values: list[int]) -> None:
    array = np.array(values, np.int64)
    reply = unpack_reply(pack(BatchHeader(sequence, 1, 2, array, array + 0, array + 0, array + 0)))
    assert isinstance(reply, BatchHeader)
    assert (reply.sequence, reply.epoch, reply.batch) == (sequence, 1, 2)
    assert all((part == array).all() for part in (reply.ids, reply.labels, reply.offsets, reply.sizes))
    assert unpack_reply(pack(Refusal(sequence, "why"))) == Refusal(sequence, "why")
    assert unpack_reply(pack(Catalog("abc", (1, 2)))) == Catalog("abc", (1, 2))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=20,
)
kinds = st.sampled_from(["hello", "get", "catalog", "batch", "refusal", "other"])
near_misses = st.tuples(kinds, st.lists(anything, max_size=8)).map(lambda pair: [1, pair[0], *pair[1]])


@settings(deadline=None)
@given(st.binary(max_size=200) | anything.map(msgpack.packb) | near_misses.map(msgpack.packb))
def test_whatever_arrives_is_a_message_or_an_error_of_ours(data: bytes) -> None:
    for unpack in (unpack_request, unpack_reply):
        with suppress(WireError):
            unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xc6\xff\xff\xff\xff",  # four gigabytes
        b"\x91" * 5000,  # lists in lists
        msgpack.packb([1, "get", True, "", 0, 0, [[0, 0, 1]]]),
        msgpack.packb([1, "get", 0, "", 0, 0, []]),
        msgpack.packb([1, "get", 0, "", 0, 0, [[0, -1, 1]]]),
        msgpack.packb([1, "get", 0, "", 0, 0, ["abc"]]),
        msgpack.packb([1, "hello", MAX_PADDING + 1]),
        msgpack.packb([2, "hello", 0]),
    ],
)
def test_a_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_request(data)
