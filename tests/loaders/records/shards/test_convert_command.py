"""The command `convert`, a conversion that is killed or started twice, and the processes that do the work."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError, WorkerError
from loaders.records.shards.convert import convert, hash_files, image_tree
from loaders.records.shards.index import ShardSet
from loaders.records.shards.output import OutputError
from loaders.records.workers import run_tasks
from loaders.streaming.__main__ import main

pytestmark = pytest.mark.process

SAMPLES = 600


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


def _shards_under_way(out: Path) -> int:
    return len(list(out.parent.glob(f".{out.name}.convert.partial/*.index.npy")))


@contextmanager
def _under_way(tree: Path, out: Path, workers: int = 2) -> Iterator[subprocess.Popen[str]]:
    """A conversion that has made a shard."""
    argv = _argv(tree, out, workers)
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not _shards_under_way(out):
            assert process.poll() is None
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_number_of_workers_makes_no_difference(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    assert len(ShardSet.open(undisturbed).shards) > 8
    for workers in (1, 5):
        assert _run(tree, tmp_path / str(workers), workers).returncode == 0
        assert _content(tmp_path / str(workers)) == _content(undisturbed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "5"]


def test_a_killed_one_leaves_no_worker_and_the_next_makes_the_same(
    tree: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with _under_way(tree, out, 3) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) >= 3
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}/stat").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived its conversion"
        time.sleep(0.01)
    assert not out.exists()
    assert _run(tree, out).returncode == 0
    assert _content(out) == _content(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_ends_it_in_order_and_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    with _under_way(tree, tmp_path / "out") as process:
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130 and "Traceback" not in errors
        assert errors.splitlines()[-1].startswith("interrupted by signal 2")
    assert list(tmp_path.iterdir()) == []


def test_of_two_at_once_one_is_told_of_the_other(tree: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with _under_way(tree, out) as first:
        os.kill(first.pid, signal.SIGSTOP)
        try:
            second = _run(tree, out)
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert second.returncode == 2 and f"{out}: another process makes its shards (process {first.pid})" in (
            second.stderr
        )
        assert first.wait(60) == 0
    assert _content(out) == _content(undisturbed)


def test_the_key_of_a_tree_follows_its_files(tree: Path) -> None:
    before = hash_files(image_tree(tree))
    assert hash_files(image_tree(tree)) == before
    os.utime(tree / image_tree(tree).paths[0])
    assert hash_files(image_tree(tree)) != before


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


def test_a_folder_of_something_else_is_left_alone(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("all of it")
    with pytest.raises(OutputError, match="holds something else than shards"):
        convert(samples, tmp_path / "precious", key="a")
    with pytest.raises(OutputError, match="it is no folder"):
        convert(samples, tmp_path / "precious/thesis.tex", key="a")
    with pytest.raises(OSError, match=r"thesis.tex"):
        convert(samples, tmp_path / "precious/thesis.tex/below", key="a")
    assert [path.name for path in tmp_path.rglob("*")] == ["precious", "thesis.tex"]


def test_shards_and_their_source_lie_apart(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = tmp_path / "link"
    inside.symlink_to(tree)
    for out in (tree / "out", tree, tree.parent, inside / "c0", Path("/")):
        assert main(["convert", "--from", "image-tree", str(tree), "--out", str(out)]) == 2
        assert "lie in one another" in capsys.readouterr().err
    with pytest.raises(OutputError, match="choose a folder with a name"):
        convert(image_tree(tree), tmp_path / "empty" / "..", key="a")


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(samples: Samples, tmp_path: Path) -> None:
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


def test_a_file_that_has_changed_stops_all_workers_and_is_named(tree: Path, tmp_path: Path) -> None:
    bad = tree / "c0/0005.jpg"
    samples, good = image_tree(tree), bad.read_bytes()
    bad.write_bytes(good[:-2])
    try:
        with pytest.raises(SampleError, match=r"c0/0005.jpg"):
            convert(samples, tmp_path / "out", key="a", shard_bytes=2**20, workers=3)
    finally:
        bad.write_bytes(good)
    assert list(tmp_path.iterdir()) == []


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
