"""The remote mount over a real link."""

import os
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from harness.config.regime import Regime
from harness.errors import MountError
from harness.system.process import processes_of_run
from harness.testbed import open_testbed
from harness.testbed.mounts.table import mounts_below
from harness.testbed.state import RunNames, state_root
from tests.integration.test_netns import LINK_MARKS

pytestmark = LINK_MARKS
LOCAL = Regime(name="local")
NEAR = Regime(name="near", rtt_ms=1.0, rate_gbit=10.0)
CONTENT = os.urandom(100_000)


@pytest.fixture(scope="module")
def testbed():
    with open_testbed("netns", f"m{uuid4().hex[:8]}", [NEAR]) as opened:
        opened.set_regime(NEAR)
        yield opened


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "a tree, with a colon: and blanks"
    (root / "class").mkdir(parents=True)
    (root / "class" / "a.jpg").write_bytes(CONTENT)
    return root


def _received(testbed) -> int:
    counts = testbed.compute.run(["cat", "/proc/net/dev"])
    return next(int(line.split()[1]) for line in counts.splitlines() if line.strip().startswith("jf0:"))


def test_compute_reads_what_storage_holds_over_the_link_in_each_epoch_and_cannot_write_it(testbed, tree):
    with testbed.mount(tree, NEAR) as mount:
        assert mount.kind in ("sshfs", "nfs4")
        point = mount.path
        for _ in range(2):
            testbed.drop_caches(tree)
            before = _received(testbed)
            assert (point / "class" / "a.jpg").read_bytes() == CONTENT
            assert _received(testbed) - before >= len(CONTENT)
        with pytest.raises(OSError, match="Read-only"):
            (point / "class" / "b.jpg").write_bytes(b"x")
    assert mounts_below(point) == []
    assert not point.exists()
    # The server's sessions end with the mount.
    assert _processes_named("sshd", testbed) == []
    assert _processes_named("sshfs", testbed) == []


def test_link_inside_the_tree_is_followed_on_the_storage_node(testbed, tree, tmp_path):
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(CONTENT)
    (tree / "class" / "link.jpg").symlink_to(outside)
    with testbed.mount(tree, NEAR) as mount:
        if mount.kind != "sshfs":
            pytest.skip("an NFS client resolves links itself")
        before = _received(testbed)
        assert (mount.path / "class" / "link.jpg").read_bytes() == CONTENT
        assert _received(testbed) - before >= len(CONTENT)


def test_local_regime_reads_the_directory_itself(testbed, tree):
    with testbed.mount(tree, LOCAL) as mount:
        assert (mount.path, mount.kind) == (tree, "local")


def test_missing_directory_is_named(testbed, tmp_path):
    with pytest.raises(MountError, match="missing"), testbed.mount(tmp_path / "missing", NEAR):
        pass


def test_mount_is_taken_away_while_a_process_still_reads_it(testbed, tree):
    with testbed.mount(tree, NEAR) as mount:
        stay = ["sh", "-c", "cd $0 && echo in && exec sleep 93", str(mount.path)]
        reader = testbed.compute.start(stay, stdout=subprocess.PIPE)
        assert reader.read_line(10) == b"in"
        point = mount.path
    assert mounts_below(point) == []
    reader.stop()


def test_killed_mount_gives_an_error_to_its_reader_and_the_next_mount_works(testbed, tree):
    with testbed.mount(tree, NEAR) as mount:
        if mount.kind != "sshfs":
            pytest.skip("an NFS mount has no process of its own")
        for pid in _processes_named("sshfs", testbed):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                (mount.path / "class" / "a.jpg").read_bytes()
    with testbed.mount(tree, NEAR) as mount:
        assert (mount.path / "class" / "a.jpg").stat().st_size == len(CONTENT)


def _processes_named(name: str, testbed) -> list[int]:
    spaces = RunNames(testbed.run_id, state_root()).namespace_paths
    return [pid for pid in processes_of_run(testbed.run_id, spaces) if _name(pid) == name]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
