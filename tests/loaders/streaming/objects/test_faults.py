"""Stores that are down, come back, refuse, or have lost an object: an error that names it, or a whole epoch."""

from __future__ import annotations

import os
import socket
import time

import pytest

from loaders.errors import StreamError
from loaders.records.shards.index import MANIFEST
from loaders.shared.objects.keys import ObjectKeys, load_keys, write_keys

pytestmark = pytest.mark.process

ALL = list(range(160))
SHARD = "shard-2.tfrecord"
SLOWLY = {"prefetch_batches": 1, "warm_bytes": 0}


def rest_of(epoch):
    return [sample_id for batch in epoch for sample_id in batch.ids.tolist()]


def test_an_epoch_is_whole_after_the_store_was_killed_and_started_again(own_store, shards, start_serving, open_loader):
    with open_loader(start_serving(own_store, own_store.add(shards)), **SLOWLY) as loader:
        epoch = loader.epoch(0)
        ids = next(epoch).ids.tolist()
        own_store.kill()
        own_store.restart()
        assert sorted(ids + rest_of(epoch)) == ALL


def test_a_store_that_stays_down_ends_the_epoch_with_an_error_and_the_next_is_whole_when_it_is_back(
    own_store, shards, start_serving, open_loader
):
    prefix = own_store.add(shards)
    daemon = start_serving(own_store, prefix, "--s3-timeout-s", "2")
    with open_loader(daemon, **SLOWLY) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        own_store.server.close()
        began = time.monotonic()
        with pytest.raises(StreamError, match=rf"s3://shards/{prefix}/shard-\d.*{own_store.server.endpoint}.*runs and"):
            rest_of(epoch)
        assert time.monotonic() - began < 15
        own_store.restart()
        assert sorted(rest_of(loader.epoch(1))) == ALL


def test_a_daemon_stops_soon_while_its_store_is_down(own_store, shards, start_serving, open_loader):
    daemon = start_serving(own_store, own_store.add(shards), "--s3-timeout-s", "60")
    with open_loader(daemon, **SLOWLY) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        own_store.server.close()
        time.sleep(0.5)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 8


def test_a_store_that_is_down_at_the_start_is_named(own_store, shards, fail_to_serve):
    prefix = own_store.add(shards)
    own_store.server.close()
    line = fail_to_serve(own_store, prefix, "--s3-timeout-s", "1")
    assert f"s3://shards/{prefix}/{MANIFEST} at {own_store.server.endpoint}" in line
    assert "check that" in line


def test_a_wrong_secret_is_refused_and_not_shown(store, shards, fail_to_serve, tmp_path):
    prefix = store.add(shards)
    right = load_keys(store.keys)
    write_keys(tmp_path / "wrong", ObjectKeys(right.access_key, "wrong-secret-of-24-letters"))
    line = fail_to_serve(store, prefix, "--s3-keys", str(tmp_path / "wrong"))
    assert f"s3://shards/{prefix}/{MANIFEST}" in line
    assert "refuses these keys (SignatureDoesNotMatch)" in line
    assert "wrong-secret" not in line
    assert right.access_key not in line


def test_a_bucket_and_a_prefix_that_do_not_exist_are_told_apart(store, fail_to_serve):
    line = fail_to_serve(store, "none")
    assert f"s3://shards/none/{MANIFEST} at {store.server.endpoint} does not exist" in line
    assert "upload DIR s3://shards/none" in line
    line = fail_to_serve(store, "none", "--root", "s3://nowhere/none")
    assert "the bucket does not exist" in line


def test_an_object_that_was_removed_is_named(store, shards, start_serving, open_loader, fail_to_serve):
    prefix = store.add(shards)
    with open_loader(start_serving(store, prefix), **SLOWLY) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        for number in range(4):
            store.bucket(prefix).remove(f"shard-{number}.tfrecord")
        with pytest.raises(StreamError, match=rf"s3://shards/{prefix}/shard-\d\.tfrecord at .* does not exist"):
            rest_of(epoch)


def test_an_object_that_was_changed_in_an_epoch_is_named(store, shards, start_serving, open_loader):
    prefix = store.add(shards)
    with open_loader(start_serving(store, prefix), **SLOWLY) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        for number in range(4):
            name = f"shard-{number}.tfrecord"
            store.bucket(prefix).write(name, os.urandom((shards / name).stat().st_size))
        with pytest.raises(StreamError, match=rf"s3://shards/{prefix}/shard-\d\.tfrecord at .* was changed"):
            rest_of(epoch)


def test_a_shard_that_was_not_the_one_indexed_is_not_served(store, shards, fail_to_serve):
    prefix = store.add(shards)
    store.bucket(prefix).write(SHARD, os.urandom((shards / SHARD).stat().st_size))
    line = fail_to_serve(store, prefix)
    assert f"s3://shards/{prefix}" in line
    assert f"{SHARD}: record 39 is not the one that was indexed" in line


def test_a_store_that_never_answers_is_named(store, fail_to_serve):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        line = fail_to_serve(store, "set", "--s3-endpoint", endpoint, "--s3-timeout-s", "1")
    assert time.monotonic() - began < 20
    assert f"s3://shards/set/{MANIFEST} at {endpoint}: no whole answer within 1 s" in line


def test_an_object_that_is_cut_short_is_not_served(store, shards, fail_to_serve):
    prefix = store.add(shards)
    whole = (shards / SHARD).read_bytes()
    store.bucket(prefix).write(SHARD, whole[:-1])
    line = fail_to_serve(store, prefix)
    assert f"s3://shards/{prefix}/{SHARD}" in line
    assert f"{len(whole) - 1} bytes, {len(whole)} in the manifest" in line
