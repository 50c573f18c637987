"""A folder that cannot be written and a disk that is full are named with the key to change."""

import errno
import os
import subprocess

import pytest

from harness.errors import DiskError
from harness.system.disk import check_writable, disk_errors


@pytest.fixture
def read_only(tmp_path):
    """A folder that not even root may write."""
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        yield tmp_path
        tmp_path.chmod(0o755)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_made(read_only):
    with pytest.raises(DiskError, match=rf"^results_dir={read_only}/a/b: {read_only} "):
        check_writable("results_dir", read_only / "a" / "b")


def test_a_file_in_the_place_of_a_folder_is_named_and_a_folder_is_not_made_yet(tmp_path):
    check_writable("results_dir", tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"file/results: .*/file "):
        check_writable("results_dir", tmp_path / "file" / "results")


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_too_small_for_any_run_is_refused_with_its_room(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", tmp_path], check=True)
    try:
        with pytest.raises(DiskError, match=rf"^results_dir: {tmp_path}: .*41 kB.* 10 MB"):
            check_writable("results_dir", tmp_path / "results")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_and_an_error_inside_a_folder_are_named_with_the_key_and_others_are_left(tmp_path):
    with pytest.raises(DiskError, match="cache_dir"), disk_errors({"cache_dir": tmp_path}):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/elsewhere/file")
    with pytest.raises(DiskError, match=r"cache/x: .*cache_dir"), disk_errors({"cache_dir": tmp_path}):
        (tmp_path / "cache" / "x").open()
    with pytest.raises(FileNotFoundError), disk_errors({"cache_dir": tmp_path / "cache"}):
        open("/no/such/file")  # noqa: PTH123, SIM115 - the error is wanted as Python raises it
