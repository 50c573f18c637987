"""The keys of a run are their owner's alone, whole or not there, and never replaced."""

import os
import stat

import pytest

from joulefeed.keys import KeysError, make_halves, read_private


def test_each_half_has_its_files_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        daemon, client = make_halves(tmp_path / "new" / "keys", {"own": b"a", "other": b"b"}, {"own": b"c"})
    finally:
        os.umask(before)
    assert {path.name: path.read_bytes() for path in daemon.iterdir()} == {"own": b"a", "other": b"b"}
    assert {path.name: path.read_bytes() for path in client.iterdir()} == {"own": b"c"}
    for path in (daemon, client):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
    assert {path.name for path in daemon.parent.iterdir()} == {"daemon", "client"}


def test_keys_are_never_replaced_and_a_failure_leaves_nothing(tmp_path):
    (tmp_path / "client").mkdir()
    with pytest.raises(LookupError, match=str(tmp_path / "client")):
        make_halves(tmp_path, {}, {}, LookupError)
    assert [path.name for path in tmp_path.iterdir()] == ["client"]
    with pytest.raises(KeysError, match="no/such"):
        make_halves(tmp_path / "new", {"own": b"a"}, {"no/such": b"b"})
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(KeysError, match="file"):
        make_halves(tmp_path / "file", {}, {})


def test_a_secret_that_others_could_read_is_refused_without_its_content(tmp_path):
    daemon, client = make_halves(tmp_path, {"own": b"very secret"}, {})
    assert read_private(daemon / "own", "a key") == b"very secret"
    (daemon / "own").chmod(0o640)
    with pytest.raises(LookupError, match=r"own .*640.*chmod 600") as raised:
        read_private(daemon / "own", "a key", LookupError)
    assert "very" not in str(raised.value)
    assert read_private(daemon / "own", "a key", is_secret=False) == b"very secret"
    with pytest.raises(KeysError, match=r"other .*expected a key"):
        read_private(client / "other", "a key")
