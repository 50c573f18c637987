"""A limit on a cell's memory: real control groups, real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from harness.errors import CellError, MemoryLimitError, TestbedError
from harness.testbed.base import Node
from harness.testbed.clean import tear_down
from harness.testbed.lifetime import Lifetime
from harness.testbed.memory import limited_memory, memory_obstacles, memory_parent, remove_memory_groups
from harness.testbed.state import RunNames, state_root
from tests.integration.runs import wait_until

OBSTACLES = memory_obstacles()
real = pytest.mark.skipif(bool(OBSTACLES), reason="; ".join(OBSTACLES))
HOARD = "import sys; held = bytearray(int(sys.argv[1])); held[::4096] = b'1' * len(held[::4096]); print('held')"
LIMIT_MB = 40.0
KILLED = """
import sys, time
from harness.testbed.base import Node
from harness.testbed.lifetime import Lifetime
from harness.testbed.memory import limited_memory
lifetime = Lifetime(sys.argv[1])
lifetime.wait_guarded()
with limited_memory(lifetime.names, 40.0, "a-cell") as group:
    # Of another run, and a grandchild, so that only the group tells whose it is.
    group.node(Node("compute", "another")).start(["sh", "-c", "sleep 60 & wait"])
    while len(members := (group.path / "cgroup.procs").read_text().split()) < 2:
        time.sleep(0.01)
    print(group.path, *members, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run():
    lifetime = Lifetime(f"m{uuid4().hex[:8]}")
    lifetime.wait_guarded()
    yield lifetime.names
    lifetime.close()


def _hoard(node: Node, nbytes: int) -> tuple[int, bytes]:
    with node.start([sys.executable, "-c", HOARD, str(nbytes)], stdout=subprocess.PIPE) as child:
        output = child.finish(10)
        return child.process.returncode, output


def _lines(path: Path) -> list[int]:
    return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]


@pytest.mark.process
@real
def test_processes_of_a_node_share_the_limit_and_the_group_goes_with_the_cell(run):
    with limited_memory(run, LIMIT_MB, "a-cell") as group:
        node = group.node(Node("compute", run.run_id))
        assert _hoard(node, 10_000_000) == (0, b"held\n")
        assert 10e6 < group.describe()["peak_bytes"] <= LIMIT_MB * 1e6
        assert group.describe()["limit_bytes"] == LIMIT_MB * 1e6
        # What a process starts is in it too.
        shell = node.start(["sh", "-c", "sleep 30 & cat"], stdin=subprocess.PIPE)
        assert wait_until(lambda: len(_lines(group.path)) == 3, 5)
    # Whoever was still in it was ended.
    assert shell.process.wait(5) == -9
    shell.stop()
    assert not group.path.exists()
    assert remove_memory_groups(run.folder) == []


@pytest.mark.process
@real
def test_what_is_read_counts_and_makes_way(run, tmp_path):
    data = tmp_path / "data"
    data.write_bytes(os.urandom(60_000_000))
    with data.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with limited_memory(run, LIMIT_MB, "a-cell") as group:
        reader = group.node(Node("compute", run.run_id)).start(["cat", str(data)], stdout=subprocess.DEVNULL)
        assert reader.process.wait(10) == 0
        assert 30e6 < group.describe()["peak_bytes"] <= LIMIT_MB * 1e6
        assert 30e6 < group.describe()["cached_bytes"] <= LIMIT_MB * 1e6
        assert group.kills() == 0


@pytest.mark.process
@real
@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_needs_more_is_killed_and_the_error_names_cell_and_limit(run, told):
    with (
        pytest.raises(MemoryLimitError, match=r"cell a-cell: .*memory_mb=40;"),
        limited_memory(run, LIMIT_MB, "a-cell") as group,
    ):
        assert _hoard(group.node(Node("compute", run.run_id)), 100_000_000) == (-9, b"")
        if told:
            raise CellError("a worker died")
    assert not group.path.exists()


@pytest.mark.process
@real
def test_daemons_have_a_limit_of_their_own_beside_that_of_the_cell(run):
    with (
        pytest.raises(MemoryLimitError, match=r"cell a-cell: .*loaders\.nosql\.daemon\.memory_mb=40;"),
        limited_memory(run, 3 * LIMIT_MB, "a-cell") as cell,
        limited_memory(run, LIMIT_MB, "a-cell", daemons_of="nosql") as daemons,
    ):
        assert _hoard(cell.node(Node("compute", run.run_id)), 60_000_000) == (0, b"held\n")
        assert _hoard(daemons.node(Node("storage", run.run_id)), 60_000_000) == (-9, b"")
    assert not cell.path.exists()
    assert not daemons.path.exists()


@pytest.mark.process
@real
def test_another_failure_stays_what_it_was(run):
    with pytest.raises(CellError, match=r"^no batch$"), limited_memory(run, LIMIT_MB, "a-cell"):
        raise CellError("no batch")


@pytest.mark.process
@real
def test_the_group_of_a_killed_run_goes_with_what_is_in_it():
    run_id = f"k{uuid4().hex[:8]}"
    harness = subprocess.Popen([sys.executable, "-c", KILLED, run_id], stdout=subprocess.PIPE, text=True)
    group, *members = harness.stdout.readline().split()
    assert _lines(Path(group)) == [*map(int, members)]
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    harness.stdout.close()
    wait_until(lambda: not RunNames(run_id, state_root()).state_file.exists())
    assert not Path(group).exists()
    assert not RunNames(run_id, state_root()).folder.exists()


@pytest.mark.process
@real
def test_a_clean_up_tells_of_a_group_that_it_removed(run):
    path = memory_parent().path / f"jf-{run.run_id}-memory"
    path.mkdir()
    (run.folder / "memory-group").write_text(f"{path}\n")
    assert f"control group {path}" in tear_down(run)
    assert not path.exists()


def _proc(tmp_path, groups: str, mounts: str) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(mounts)
    return folder


def _tree(root: Path, **handed_on: str) -> None:
    """Lay out groups of version 2 as the kernel shows them; what each hands on, by its path with __ for /."""
    for name, controllers in handed_on.items():
        group = root / name.replace("__", "/").strip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.subtree_control").write_text(f"{controllers}\n")
        (group / "cgroup.procs").write_text("")


def test_version_2_uses_the_nearest_group_that_hands_memory_on(tmp_path):
    root = tmp_path / "fs"
    _tree(root, __="cpu memory", user="cpu memory pids", user__session="")
    proc = _proc(tmp_path, "0::/user/session\n", f"41 31 0:38 / {root} rw,relatime - cgroup2 cgroup2 rw\n")
    parent = memory_parent(proc)
    assert (parent.path, parent.version) == (root / "user", 2)


def test_version_2_without_a_group_that_hands_memory_on_is_one_error_with_the_remedy(tmp_path):
    root = tmp_path / "fs"
    _tree(root, __="cpu", session="")
    proc = _proc(tmp_path, "0::/session\n", f"41 31 0:38 / {root} rw,relatime - cgroup2 cgroup2 rw\n")
    with pytest.raises(TestbedError, match=r"memory_mb: .*fs/session: .*Delegate=yes"):
        memory_parent(proc)


def test_version_1_is_found_where_the_mount_of_a_container_begins_at_its_own_group(tmp_path):
    root = tmp_path / "fs"
    root.mkdir()
    mounts = "9 8 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    mounts += f"35 31 0:32 /docker/1f {root} rw - cgroup cgroup rw,memory\n"
    parent = memory_parent(_proc(tmp_path, "4:memory:/docker/1f\n0::/\n", mounts))
    assert (parent.path, parent.version) == (root, 1)


def test_a_hierarchy_that_is_not_mounted_is_one_error_with_the_remedy(tmp_path):
    with pytest.raises(TestbedError, match=r"version 1 is not mounted; run as root"):
        memory_parent(_proc(tmp_path, "4:memory:/a\n", "9 8 0:3 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"))


@pytest.mark.process
@real
def test_a_limit_that_the_kernel_refuses_is_told_with_the_place(run, monkeypatch):
    parent = memory_parent()
    monkeypatch.setattr(
        "harness.testbed.memory.memory_parent", lambda: type(parent)(parent.path / "absent", parent.version)
    )
    with pytest.raises(TestbedError, match=r"absent/jf-"), limited_memory(run, LIMIT_MB, "a-cell"):
        raise AssertionError("not reached")
