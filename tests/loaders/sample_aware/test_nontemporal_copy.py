"""What is copied past the caches is what was there, whatever lies where."""

import ctypes
import fcntl
import os
import random
import shutil
import tempfile

import numpy as np
import pytest

from loaders.sample_aware.ipc.nontemporal_copy import library, load_copy, open_library


@pytest.fixture
def in_file():
    if not library():
        pytest.skip("no C compiler on this host, or no x86-64")
    descriptor = open_library()
    yield descriptor
    os.close(descriptor)


def test_every_byte_is_copied_and_none_beside_it(in_file):
    move = load_copy(in_file)
    moments = random.Random(1)
    source = np.frombuffer(moments.randbytes(5000), np.uint8)
    for size in [*range(200), 4096, *(moments.randrange(4800) for _ in range(200))]:
        to, at = moments.randrange(64, 130), moments.randrange(130)
        found = np.zeros(5200, np.uint8)
        move(found.ctypes.data + to, source.ctypes.data + at, size)
        assert (found[to : to + size] == source[at : at + size]).all()
        assert not found[:to].any() and not found[to + size :].any()


def test_a_host_without_a_compiler_or_with_a_broken_one_copies_plainly(monkeypatch, tmp_path):
    for name in ("none", "broken"):
        (tmp_path / name).mkdir()
    broken = tmp_path / "broken" / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("none", "broken"):
        monkeypatch.setenv("PATH", str(tmp_path / name))
        assert (shutil.which("cc") is None) == (name == "none")
        assert not library.__wrapped__()
    nothing = os.memfd_create("nothing")
    source, found = np.arange(9), np.zeros(9, int)
    load_copy(nothing)(found.ctypes.data, source.ctypes.data, found.nbytes)
    os.close(nothing)
    assert (found == source).all()


def test_a_host_without_room_for_the_library_has_none(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert not library.__wrapped__()


def test_what_is_no_library_is_not_called(tmp_path):
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"not a library")
    descriptor = os.open(nonsense, os.O_RDONLY)
    # The linker knows a library by its path, and the other test's may have had this number.
    apart = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500)
    os.close(descriptor)
    assert load_copy(apart) is ctypes.memmove
    os.close(apart)
