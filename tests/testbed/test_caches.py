"""Forgetting cached pages."""

import ctypes
import mmap
import os
import subprocess
import sys
from subprocess import PIPE

import pytest

from harness.testbed import caches
from harness.testbed.caches import MAPPED_STAY, drop_caches, how_dropped


def _cached_pages(path) -> int:
    """Count the file's pages in the page cache: mincore(2)."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        present = (ctypes.c_ubyte * pages)()
        view = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(view))
        done = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(size), present)
        del view
        assert done == 0
    return sum(byte & 1 for byte in present)


@pytest.fixture
def forbidden(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "DROP_CACHES", tmp_path / "absent" / "drop_caches")


@pytest.mark.process
def test_fadvise_is_used_where_the_kernel_forbids_dropping_all(tmp_path, forbidden):
    (tmp_path / "class").mkdir()
    file = tmp_path / "class" / "a.jpg"
    file.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    if not _cached_pages(file):
        pytest.skip("this file system caches no pages")
    assert drop_caches(tmp_path) == "fadvise"
    # Pages that are being written back at that moment may stay.
    assert _cached_pages(file) < 64


def test_pipes_and_dangling_links_are_passed_over(tmp_path, forbidden):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert drop_caches(tmp_path) == "fadvise"


def test_missing_tree_is_an_error(tmp_path, forbidden):
    with pytest.raises(FileNotFoundError):
        drop_caches(tmp_path / "missing")


@pytest.mark.root
@pytest.mark.skipif(how_dropped() != "vm.drop_caches", reason="vm.drop_caches may not be written here")
def test_all_caches_are_dropped_where_permitted(tmp_path):
    assert drop_caches(tmp_path) == "vm.drop_caches"


@pytest.mark.process
def test_the_tree_alone_is_forgotten_when_that_is_asked_for(tmp_path):
    for name in ("tree", "beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(os.urandom(64 * mmap.PAGESIZE))
    os.sync()
    if not _cached_pages(tmp_path / "beside" / "file"):
        pytest.skip("this file system caches no pages")
    assert drop_caches(tmp_path / "tree", "tree") == "fadvise" == how_dropped("tree")
    assert _cached_pages(tmp_path / "tree" / "file") < 64
    # Another program may drop all caches at any time; then this says nothing.
    assert _cached_pages(tmp_path / "beside" / "file") in (0, 64)


MAPPER = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    print(sum(mapped[::4096]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
@pytest.mark.parametrize("may", [True, False])
def test_pages_that_a_process_maps_are_forgotten_too_or_said_to_stay(tmp_path, monkeypatch, may):
    file = tmp_path / "shard"
    file.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    os.sync()
    if not may:
        # As where the capability to advise other processes is missing: the call says so by -1.
        monkeypatch.setattr(caches, "_PROCESS_MADVISE", -1)
    with subprocess.Popen([sys.executable, "-c", MAPPER, file], stdin=PIPE, stdout=PIPE) as mapper:
        mapper.stdout.readline()
        how = drop_caches(tmp_path, "tree")
        kept = _cached_pages(file)
        mapper.stdin.close()
    assert how in (("fadvise", f"fadvise, {MAPPED_STAY}") if may else (f"fadvise, {MAPPED_STAY}",))
    assert (kept > 0) == (MAPPED_STAY in how)
