"""Shards on their way to an object store."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loaders.errors import ObjectStoreError
from loaders.records.shards.index import MANIFEST
from loaders.shared.objects.bucket import MissingObjectError
from loaders.streaming.objects.upload import upload

pytestmark = pytest.mark.process


def test_an_upload_that_is_repeated_sends_what_is_missing_or_differs(store, shards):
    bucket = store.bucket("repeated")
    first = upload(shards, bucket)
    assert (first.files, first.sent) == (9, 9)
    assert upload(shards, bucket).sent == 0
    bucket.remove("shard-1.tfrecord")
    bucket.write("shard-2.index.npy", b"another")
    again = upload(shards, bucket)
    assert again.sent == 2
    for path in shards.iterdir():
        assert bytes(bucket.read(path.name)[0]) == path.read_bytes()


def test_parts_of_a_large_file_are_known_again(store, make_shards, tmp_path):
    large = make_shards(tmp_path, shards=1, records=200, size=100_000)
    assert upload(large, store.bucket("parts")).sent == 3
    assert upload(large, store.bucket("parts")).sent == 0


def test_other_shards_are_replaced_only_when_told(store, shards, make_shards, tmp_path):
    bucket = store.bucket("replaced")
    upload(shards, bucket)
    others = make_shards(tmp_path, shards=2, records=10, size=1000)
    with pytest.raises(ObjectStoreError, match=r"s3://shards/replaced/manifest\.json .* --replace"):
        upload(others, bucket)
    upload(others, bucket, replace=True)
    assert bytes(bucket.read(MANIFEST)[0]) == (others / MANIFEST).read_bytes()
    with pytest.raises(MissingObjectError):
        bucket.info("shard-3.tfrecord")


def test_the_manifest_is_not_there_until_all_else_is(store, shards, monkeypatch):
    bucket = store.bucket("half")
    write = bucket.write

    def refuse_one(name, content):
        if name == "shard-3.index.npy":
            raise ObjectStoreError("refused")
        write(name, content)

    monkeypatch.setattr(bucket, "write", refuse_one)
    with pytest.raises(ObjectStoreError, match="refused"):
        upload(shards, bucket)
    with pytest.raises(MissingObjectError):
        bucket.info(MANIFEST)


def test_the_command_says_what_it_did_and_takes_keys_from_the_environment(store, shards):
    from loaders.shared.objects.keys import load_keys

    keys = load_keys(store.keys)
    names = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    own = {**os.environ, **names, "AWS_ENDPOINT_URL": store.server.endpoint}
    argv = [sys.executable, "-m", "loaders.streaming", "upload", shards]
    done = subprocess.run([*argv, "s3://shards/command"], capture_output=True, text=True, env=own, check=False)
    assert done.returncode == 0, done.stderr
    assert "9 files, 9 of them sent" in done.stdout
    done = subprocess.run([*argv, "s3://nowhere/command"], capture_output=True, text=True, env=own, check=False)
    assert done.returncode == 2
    assert "the bucket does not exist" in done.stderr
