"""A conversion that is killed, started twice, or meets a full disk."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError, WorkerError
from loaders.records.shards.convert import convert, convert_source, image_tree
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import verify_folder
from loaders.records.shards.output import OutputError, run_tasks

pytestmark = pytest.mark.process

SAMPLES = 1500


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many files that begin and end as JPEGs do."""
    root = tmp_path_factory.mktemp("images")
    draw = random.Random(1)
    for index in range(SAMPLES):
        path = root / f"c{index % 5}" / f"{index:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff\xda" + bytes(draw.randrange(10_000, 50_000)) + b"\xff\xd9")
    return root


@pytest.fixture(scope="module")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards that an undisturbed conversion makes."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert _run(tree, out).returncode == 0
    return out


def _argv(tree: Path, out: Path, workers: int = 2) -> list[str]:
    options = ["--out", str(out), "--workers", str(workers), "--shard-mib", "1"]
    return [sys.executable, "-m", "loaders.streaming", "convert", "--from", "image-tree", str(tree), *options]


def _run(tree: Path, out: Path, workers: int = 2) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_argv(tree, out, workers), capture_output=True, text=True, check=False)


def _content(folder: Path) -> dict[str, bytes]:
    """Everything in a shard folder but the times of the files that it was made of."""
    listing = re.compile(rb' "listing": "[0-9a-f]+",\n')
    return {path.name: listing.sub(b"", path.read_bytes()) for path in folder.iterdir()}


def _shards_under_way(out: Path) -> int:
    return len(list(out.parent.glob(f".{out.name}.convert.partial/*.index.npy")))


def test_the_number_of_workers_makes_no_difference(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    assert len(ShardSet.open(undisturbed).shards) > 20
    for workers in (1, 5):
        assert _run(tree, tmp_path / str(workers), workers).returncode == 0
        assert _content(tmp_path / str(workers)) == _content(undisturbed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "5"]


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_again_and_again_it_goes_on_and_makes_the_same(
    tree: Path, undisturbed: Path, tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "out"
    draw = random.Random(workers)
    kills, whole = 0, 0
    while kills < 6:
        process = subprocess.Popen(_argv(tree, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = whole + draw.randrange(1, 5)
        while _shards_under_way(out) < wanted and process.poll() is None and not out.exists():
            time.sleep(0.001)
        process.kill()
        process.wait()
        kills += 1
        if out.exists():
            break
        assert _shards_under_way(out) >= whole, "shards that were whole are gone"
        whole = _shards_under_way(out)
    done = _run(tree, out, workers)
    assert done.returncode == 0, done.stderr
    assert whole > 4 and "of them from before" in done.stdout
    assert _content(out) == _content(undisturbed)
    verify_folder(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_workers_of_a_killed_conversion_end(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(_argv(tree, out, 3), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not _shards_under_way(out):
        assert process.poll() is None
        time.sleep(0.001)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}/stat").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived its conversion"
        time.sleep(0.01)


def test_ctrl_c_ends_it_in_order_and_it_goes_on(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        _argv(tree, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while _shards_under_way(out) < 2:
        assert process.poll() is None
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted by signal 2; run the same command again")
    assert not out.exists() and _shards_under_way(out) >= 2
    assert _run(tree, out).returncode == 0
    assert _content(out) == _content(undisturbed)


def test_a_changed_file_begins_anew(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = image_tree(tree)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_source(source, out, shard_bytes=2**20, progress=stop)
    os.utime(tree / source.items[0].name)
    done = convert_source(image_tree(tree), out, shard_bytes=2**20)
    assert done.taken_over == 0 and _content(out) == _content(undisturbed)


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_was_stopped_after_its_last_shard_goes_on(
    tree: Path, undisturbed: Path, tmp_path: Path, workers: int
) -> None:
    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"shard_bytes": 2**20, "workers": 2}
    with pytest.raises(KeyboardInterrupt):
        convert_source(image_tree(tree), tmp_path / "out", progress=stop, **options)
    done = convert_source(image_tree(tree), tmp_path / "out", **(options | {"workers": workers}))
    assert done.taken_over == SAMPLES and _content(tmp_path / "out") == _content(undisturbed)


@pytest.mark.parametrize("damage", ["shard cut", "index cut", "index gone", "index of another"])
def test_a_damaged_half_made_shard_is_made_again(tree: Path, undisturbed: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_source(image_tree(tree), out, shard_bytes=2**20, progress=stop)
    work = tmp_path / ".out.convert.partial"
    match damage:
        case "shard cut":
            os.truncate(work / "shard-00000.tfrecord", 1000)
        case "index cut":
            os.truncate(work / "shard-00000.index.npy", 0)
        case "index gone":
            (work / "shard-00000.index.npy").unlink()
        case "index of another":
            (work / "shard-00000.index.npy").write_bytes((work / "shard-00001.index.npy").read_bytes())
    assert convert_source(image_tree(tree), out, shard_bytes=2**20).taken_over > 0
    assert _content(out) == _content(undisturbed)


def test_of_two_at_once_one_is_told_of_the_other(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = subprocess.Popen(_argv(tree, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not _shards_under_way(out):
        assert first.poll() is None
        time.sleep(0.001)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second = _run(tree, out)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 2
    errors = [line for line in second.stderr.splitlines() if "error" in line]
    assert errors == [
        f"error: {out}: another process makes its shards (process {first.pid}); wait for it, or choose another folder"
    ]
    assert first.wait(60) == 0
    assert _content(out) == _content(undisturbed)


def test_shards_that_are_there_are_kept_and_others_only_replaced_on_request(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = image_tree(tree)
    convert_source(source, out)
    before = (out / "manifest.json").stat().st_mtime_ns
    assert convert_source(source, out).taken_over == SAMPLES
    assert (out / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(OutputError, match="--replace"):
        convert_source(source, out, seed=1)
    convert_source(source, out, seed=1, replace=True)
    assert verify_folder(out).samples == SAMPLES
    os.utime(tree / source.items[5].name)
    with pytest.raises(OutputError, match="--replace"):
        convert_source(image_tree(tree), out, seed=1)


def test_a_folder_of_something_else_is_left_alone(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("all of it")
    with pytest.raises(OutputError, match="holds something else than shards"):
        convert_source(image_tree(tree), tmp_path / "precious", replace=True)
    with pytest.raises(OutputError, match="it is no folder"):
        convert_source(image_tree(tree), tmp_path / "precious/thesis.tex")
    with pytest.raises(OutputError, match=r"thesis.tex"):
        convert_source(image_tree(tree), tmp_path / "precious/thesis.tex/below")
    assert [path.name for path in tmp_path.rglob("*")] == ["precious", "thesis.tex"]


def test_shards_and_their_source_lie_apart(tree: Path, tmp_path: Path) -> None:
    inside = tmp_path / "link"
    inside.symlink_to(tree)
    for out in (tree / "out", tree, tree.parent, inside / "c0", Path("/")):
        with pytest.raises(OutputError, match="lie in one another"):
            convert_source(image_tree(tree), out)
    with pytest.raises(OutputError, match="choose a folder with a name"):
        convert_source(image_tree(tree), tmp_path / "empty" / "..")


def test_a_full_disk_is_told_with_the_file_and_what_is_whole_stays(
    tree: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "full" / "out"
    out.parent.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", out.parent], check=False).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        with pytest.raises(OutputError, match=r"shard-000\d\d\.tfrecord"):
            convert_source(image_tree(tree), out, shard_bytes=2**20, workers=2)
        assert _shards_under_way(out) > 4
        subprocess.run(["mount", "-o", "remount,size=200m", out.parent], check=True)
        assert convert_source(image_tree(tree), out, shard_bytes=2**20).taken_over > 0
        assert _content(out) == _content(undisturbed)
    finally:
        subprocess.run(["umount", out.parent], check=True)


def test_the_harness_form_tells_a_full_disk_as_the_system_does(samples: Samples, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"shard-00000") as raised:
            convert(samples, tmp_path / "out", key="a")
        assert raised.value.errno == errno.EFBIG and raised.value.filename
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_file_stops_all_workers_and_the_rest_goes_on_when_it_is_mended(
    tree: Path, undisturbed: Path, tmp_path: Path
) -> None:
    bad = tree / "c0/0005.jpg"
    good, times = bad.read_bytes(), bad.stat()
    bad.write_bytes(good[:-2] + b"..")
    try:
        with pytest.raises(SampleError, match=r"c0/0005.jpg"):
            convert_source(image_tree(tree), tmp_path / "out", shard_bytes=2**20, workers=3)
    finally:
        bad.write_bytes(good)
        os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    convert_source(image_tree(tree), tmp_path / "out", shard_bytes=2**20)
    assert _content(tmp_path / "out") == _content(undisturbed)


def _die(task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    with pytest.raises(WorkerError, match="a worker process was killed"):
        list(run_tasks(_die, list(range(20)), 2))


@pytest.mark.parametrize("workers", [0, -1, 257])
def test_an_impossible_number_of_workers_is_refused(workers: int) -> None:
    with pytest.raises(LoaderConfigError, match=f"workers={workers}"):
        list(run_tasks(_die, [1], workers))
