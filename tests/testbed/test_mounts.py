"""Reading the kernel's table of mounts."""

from pathlib import Path

import pytest

from harness.testbed.mounts import table as mount_table
from harness.testbed.mounts.table import is_mounted, mounts_below

TABLE = r"""22 1 0:20 / / rw - ext4 /dev/vda rw
30 22 0:21 / /run/joulefeed/aa/mount-0 ro - fuse.sshfs storage:/x ro
31 22 0:22 / /run/joulefeed/aab rw - tmpfs tmpfs rw
32 22 0:23 / /run/joulefeed/aa/with\040blank\134slash rw - tmpfs tmpfs rw
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    file = tmp_path / "mountinfo"
    file.write_text(TABLE)
    monkeypatch.setattr(mount_table, "MOUNT_TABLE", file)


def test_only_mounts_inside_the_folder_are_listed_and_a_mount_point_is_an_exact_path(table):
    assert mounts_below(Path("/run/joulefeed/aa")) == [
        Path("/run/joulefeed/aa/mount-0"),
        Path("/run/joulefeed/aa/with blank\\slash"),
    ]
    assert is_mounted(Path("/run/joulefeed/aab"))
    assert not is_mounted(Path("/run/joulefeed/aa"))


def test_root_is_mounted_on_this_machine():
    assert is_mounted(Path("/"))
