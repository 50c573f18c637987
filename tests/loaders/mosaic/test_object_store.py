"""A real MinIO: where it listens, with whose keys; and its keys."""

import os

import psutil
import pytest

from loaders.errors import LoaderConfigError
from loaders.mosaic.keys import CREDENTIALS, load_keys, make_keys
from loaders.mosaic.object_store import ObjectServer, ObjectServerError

pytestmark = pytest.mark.process


def test_it_listens_on_its_port_of_loopback_alone_and_its_keys_are_on_no_command_line(tmp_path):
    keys = load_keys(make_keys(tmp_path / "keys")[0])
    with ObjectServer(keys, tmp_path / "objects") as server:
        group = [one for one in psutil.process_iter() if os.getpgid(one.pid) == server.pid]
        listening = [one.laddr for each in group for one in each.net_connections("tcp") if one.status == "LISTEN"]
        words = " ".join(" ".join(each.cmdline()) for each in group)
        with pytest.raises(ObjectServerError, match=rf"{server.port}"):
            ObjectServer(keys, tmp_path / "others", port=server.port)
    assert {one.port for one in listening} == {server.port}
    assert {one.ip for one in listening} <= {"127.0.0.1", "::1"}
    assert "minio" in words
    assert keys.secret_key not in words
    assert keys.access_key not in words
    # The objects stay, for a server with other keys.
    with ObjectServer(load_keys(make_keys(tmp_path / "others")[0]), tmp_path / "objects"):
        pass


def test_keys_come_from_a_file_that_only_its_owner_reads_or_from_the_environment(tmp_path):
    daemon, client = make_keys(tmp_path / "keys")
    keys = load_keys(daemon)
    assert keys == load_keys(client / CREDENTIALS)
    assert keys.secret_key not in repr(keys)
    names = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    assert load_keys(None, names) == keys
    with pytest.raises(LoaderConfigError, match="AWS_SECRET_ACCESS_KEY"):
        load_keys(None, {"AWS_ACCESS_KEY_ID": "one"})
    (daemon / CREDENTIALS).write_text("no section = secret-word\n")
    with pytest.raises(LoaderConfigError, match=CREDENTIALS) as raised:
        load_keys(daemon)
    assert "secret-word" not in str(raised.value)
