from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.errors import ShardError
from loaders.records.shards.example import ExampleView, Feature, encode_example, encode_head

_INT64 = st.integers(-(2**63), 2**63 - 1)
_FLOAT32 = st.floats(width=32, allow_nan=False)
_NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
_FEATURES = st.dictionaries(
    _NAMES, st.one_of(st.lists(_INT64), st.lists(_FLOAT32), st.lists(st.binary(max_size=40))), max_size=6
)


@settings(deadline=None)
@given(_FEATURES)
def test_an_example_holds_what_was_put_in(features: dict[str, Feature]) -> None:
    assert dict(ExampleView(encode_example(features))) == features


@settings(deadline=None)
@given(_FEATURES, _NAMES, st.binary(max_size=400))
def test_a_head_and_its_payload_are_the_whole_example(features: dict[str, Feature], name: str, payload: bytes) -> None:
    features.pop(name, None)
    head = encode_head(features, name, len(payload))
    assert head + payload == encode_example({**features, name: [payload]})
    example = ExampleView(head + payload)
    assert example.spans(name) == [(len(head), len(payload))]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), _FEATURES)
def test_spans_are_where_the_values_are(values: list[bytes], features: dict[str, Feature]) -> None:
    message = encode_example({**features, "here": values, "after": [1]})
    spans = ExampleView(message).spans("here")
    assert [message[at : at + size] for at, size in spans] == values
    assert ExampleView(message).spans("after") == []


def test_packed_and_plain_lists_are_read() -> None:
    entry = bytes.fromhex("0a0161 1206 1a04 0a02 0a14".replace(" ", ""))  # a: int64 [10, 20] packed
    plain = bytes.fromhex("0a0162 1206 1a04 080a 0814".replace(" ", ""))  # b: int64 [10, 20]
    floats = bytes.fromhex("0a0163 1208 1206 0a04 0000803f".replace(" ", ""))  # c: float [1.0] packed
    single = bytes.fromhex("0a0164 1207 1205 0d 0000803f".replace(" ", ""))  # d: float [1.0]
    backward = bytes.fromhex("1207 0a05 0a03 616263 0a0165".replace(" ", ""))  # e: bytes [abc], value before name
    entries = b"".join(b"\x0a" + bytes([len(part)]) + part for part in (entry, plain, floats, single, backward))
    message = b"\x0a" + bytes([len(entries)]) + entries
    assert dict(ExampleView(message)) == {"a": [10, 20], "b": [10, 20], "c": [1.0], "d": [1.0], "e": [b"abc"]}
    ((at, size),) = ExampleView(message).spans("e")
    assert message[at : at + size] == b"abc"


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_a_malformed_example_is_an_error_of_ours(payload: bytes) -> None:
    with suppress(ShardError):
        example = ExampleView(payload)
        for name in example:
            with suppress(ShardError):
                assert all(at >= 0 and at + size <= len(payload) for at, size in example.spans(name))
            with suppress(ShardError):
                example[name]


@settings(deadline=None, max_examples=300)
@given(_FEATURES, st.data())
def test_a_damaged_example_is_read_or_is_an_error_of_ours(features: dict[str, Feature], data: st.DataObject) -> None:
    message = bytearray(encode_example({**features, "last": [b"payload"]}))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = dict(ExampleView(message))
    except ShardError:
        return
    assert all(isinstance(name, str) for name in found)


@pytest.mark.parametrize("values", [[1, b"a"], [b"a", 1], [1.0, "a"], [2**63], [-(2**63) - 1], [1e39]])
def test_what_no_feature_can_hold_is_refused(values: list[object]) -> None:
    with pytest.raises(ShardError, match="feature 'odd'"):
        encode_example({"odd": values})  # type: ignore[dict-item]


def test_more_than_protobuf_reads_is_refused_before_it_is_written() -> None:
    with pytest.raises(ShardError, match="2147483648"):
        encode_head({}, "a", 2**31 - len(encode_head({}, "a", 2**31 - 64)))
