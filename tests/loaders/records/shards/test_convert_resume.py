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
from loaders.records.shards.convert import convert, hash_files, image_tree
from loaders.records.shards.index import ShardSet
from loaders.records.shards.output import OutputError, run_tasks
from loaders.streaming.__main__ import main

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
    """Everything in a shard folder but the key of the files that it was made of."""
    key = re.compile(rb' "key": "[^"]+",\n')
    return {path.name: key.sub(b"", path.read_bytes()) for path in folder.iterdir()}


def _convert(tree: Path, out: Path, key: str = "a", **options: Any) -> int:
    """Convert a tree into shards of 1 MiB; return the number of samples in shards that were taken over."""
    seen: list[int] = []
    progress = options.pop("progress", None)

    def note(done: int, total: int) -> None:
        seen.append(done)
        if progress is not None:
            progress(done, total)

    convert(image_tree(tree), out, key=key, shard_bytes=2**20, progress=note, **options)
    return 0 if not seen or seen[0] == 1 else seen[0]


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
    assert whole > 4
    assert _content(out) == _content(undisturbed)
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


def test_under_another_key_it_begins_again(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _convert(tree, out, progress=stop)
    assert _convert(tree, out, key="b") == 0 and _content(out) == _content(undisturbed)


def test_the_key_of_a_tree_follows_its_files(tree: Path) -> None:
    before = hash_files(image_tree(tree))
    assert hash_files(image_tree(tree)) == before
    os.utime(tree / image_tree(tree).paths[0])
    assert hash_files(image_tree(tree)) != before


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_was_stopped_after_its_last_shard_goes_on(
    tree: Path, undisturbed: Path, tmp_path: Path, workers: int
) -> None:
    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _convert(tree, tmp_path / "out", progress=stop, workers=2)
    assert _convert(tree, tmp_path / "out", workers=workers) == SAMPLES
    assert _content(tmp_path / "out") == _content(undisturbed)


@pytest.mark.parametrize("damage", ["shard cut", "index cut", "index gone", "index of another"])
def test_a_damaged_half_made_shard_is_made_again(tree: Path, undisturbed: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _convert(tree, out, progress=stop)
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
    assert _convert(tree, out) > 0
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
    assert _run(tree, out).returncode == 0
    before = (out / "manifest.json").stat().st_mtime_ns
    assert _run(tree, out).returncode == 0
    assert (out / "manifest.json").stat().st_mtime_ns == before
    other = [*_argv(tree, out), "--seed", "1"]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--replace" in refused.stderr
    assert (out / "manifest.json").stat().st_mtime_ns == before
    subprocess.run([*other, "--replace"], capture_output=True, check=True)
    assert ShardSet.open(out).samples == SAMPLES and (out / "manifest.json").stat().st_mtime_ns != before


def test_a_folder_of_something_else_is_left_alone(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("all of it")
    with pytest.raises(OutputError, match="holds something else than shards"):
        _convert(tree, tmp_path / "precious")
    with pytest.raises(OutputError, match="it is no folder"):
        _convert(tree, tmp_path / "precious/thesis.tex")
    with pytest.raises(OSError, match=r"thesis.tex"):
        _convert(tree, tmp_path / "precious/thesis.tex/below")
    assert [path.name for path in tmp_path.rglob("*")] == ["precious", "thesis.tex"]


def test_shards_and_their_source_lie_apart(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = tmp_path / "link"
    inside.symlink_to(tree)
    for out in (tree / "out", tree, tree.parent, inside / "c0", Path("/")):
        assert main(["convert", "--from", "image-tree", str(tree), "--out", str(out)]) == 2
        assert "lie in one another" in capsys.readouterr().err
    with pytest.raises(OutputError, match="choose a folder with a name"):
        _convert(tree, tmp_path / "empty" / "..")


def test_a_full_disk_is_told_with_the_file_and_what_is_whole_stays(
    tree: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "full" / "out"
    out.parent.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", out.parent], check=False).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        full = _run(tree, out)
        assert full.returncode == 2 and re.search(r"shard-000\d\d\.tfrecord: the disk is full; make room", full.stderr)
        assert _shards_under_way(out) > 4
        subprocess.run(["mount", "-o", "remount,size=200m", out.parent], check=True)
        index = next((out.parent / ".out.convert.partial").glob("*.index.npy"))
        whole = index.stat().st_ino
        assert _run(tree, out).returncode == 0
        assert (out / index.name).stat().st_ino == whole
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


def test_a_file_that_has_changed_stops_all_workers_and_the_rest_goes_on(
    tree: Path, undisturbed: Path, tmp_path: Path
) -> None:
    bad = tree / "c0/0005.jpg"
    samples, good = image_tree(tree), bad.read_bytes()
    bad.write_bytes(good[:-2])
    try:
        with pytest.raises(SampleError, match=r"c0/0005.jpg"):
            convert(samples, tmp_path / "out", key="a", shard_bytes=2**20, workers=3)
    finally:
        bad.write_bytes(good)
    _convert(tree, tmp_path / "out")
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
