import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.datasets import generate as generating
from harness.datasets.coco import CocoLike
from harness.datasets.imagenet_like import ImagenetLike, Synthetic
from harness.datasets.kits19 import Kits19Like
from harness.datasets.librispeech.generated import LibriSpeechLike
from harness.errors import DatasetError, DiskError
from joulefeed.signals import Interrupted
from tests.integration.runs import has_ended, wait_until

pytestmark = pytest.mark.process

SMALL = ImagenetLike("small", samples=24, classes=3, mean_kb=12)

MAKE = """
import os, sys
from pathlib import Path
from harness.datasets.imagenet_like import ImagenetLike
cache, samples, cores = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if cores == 1:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
say = lambda what, done, total: print(what, done, flush=True)
print("hash", ImagenetLike("small", samples=samples, classes=3, mean_kb=12).open(cache, say).content_hash)
"""


def maker(cache, samples=24, cores=2):
    argv = [sys.executable, "-c", MAKE, str(cache), str(samples), str(cores)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def workers_of(pid):
    """Return the children of a process, but for multiprocessing's resource tracker, which another test may need."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()]


def left_beside(cache):
    return [entry.name for entry in (cache / "datasets").iterdir() if entry.name.endswith(".partial")]


def test_the_tree_holds_what_the_handle_says(tmp_path, heard):
    handle = SMALL.open(tmp_path, heard)
    files = sorted(str(path.relative_to(handle.samples.root)) for path in handle.samples.root.rglob("*.jpg"))
    assert files == list(handle.samples.paths)
    assert [handle.samples.path(i).stat().st_size for i in range(24)] == handle.samples.sizes.tolist()
    assert np.bincount(handle.samples.labels).tolist() == [8, 8, 8]
    assert heard[0] == ("making small", 0, 24)
    assert heard[-1] == ("making small", 24, 24)
    assert (handle.name, handle.skipped) == ("small", ())
    json.dumps(handle.describe)


def test_a_tree_that_is_there_is_used_again(tmp_path, heard):
    first = SMALL.open(tmp_path, heard)
    before = first.samples.path(0).stat().st_mtime_ns
    heard.clear()
    again = SMALL.open(tmp_path, heard)
    assert {what for what, _, _ in heard} == {"checking small"}
    assert again.content_hash == first.content_hash
    assert again.samples.path(0).stat().st_mtime_ns == before


@pytest.mark.parametrize("of", ["a sample", "the samples' table"])
def test_a_tree_of_which_a_byte_has_changed_is_made_again(of, tmp_path, heard):
    first = SMALL.open(tmp_path, heard)
    path = first.samples.path(6) if of == "a sample" else first.samples.root.with_name("samples.parquet")
    whole, before = path.read_bytes(), path.stat()
    middle = len(whole) // 2 if of == "a sample" else whole.index(first.samples.paths[0].encode()) + 3
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    heard.clear()
    again = SMALL.open(tmp_path, heard)
    assert ("files of small have changed in the cache: making it again", 1, 1) in heard
    assert of != "a sample" or path.read_bytes() == whole
    assert (again.samples.paths, again.content_hash) == (first.samples.paths, first.content_hash)


@pytest.mark.parametrize(
    "dataset",
    [Kits19Like("k", 2, 0.001, "nifti"), CocoLike("c", 4, 0.1), LibriSpeechLike("s", 8, 0.1)],
    ids=lambda dataset: dataset.name,
)
def test_datasets_of_every_layout_are_known_by_their_bytes(dataset, tmp_path, heard):
    first = dataset.open(tmp_path, heard)
    heard.clear()
    assert dataset.open(tmp_path, heard).content_hash == first.content_hash
    assert {what for what, _, _ in heard} == {f"checking {dataset.name}"}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A cache that two processes filled at once, with one core each, and what they said."""
    cache = tmp_path_factory.mktemp("shared")
    processes = [maker(cache, cores=1), maker(cache, cores=1)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return cache, said


def test_two_that_make_the_same_dataset_at_once_make_it_once(others):
    cache, said = others
    assert sum("making small 24" in text for text in said) == 1
    assert left_beside(cache) == []


def test_other_processes_and_other_numbers_of_them_make_the_same_bytes(others, tmp_path, heard):
    cache, said = others
    here = SMALL.open(tmp_path, heard)
    assert all(f"hash {here.content_hash}" in text for text in said)
    tree = next((cache / "datasets").glob("small-*")) / "tree"
    for sample_id in (0, 11, 23):
        assert (tree / here.samples.paths[sample_id]).read_bytes() == here.samples.path(sample_id).read_bytes()


def test_killed_halfway_its_workers_die_and_the_next_run_clears_up(tmp_path, heard):
    process = maker(tmp_path, samples=2000)
    for line in process.stdout:
        if line.startswith("making small") and int(line.split()[-1]) >= 3:
            break
    workers = workers_of(process.pid)
    assert workers
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: all(map(has_ended, workers)), 10)
    assert left_beside(tmp_path)
    SMALL.open(tmp_path, heard)  # another dataset: it clears up all the same
    assert left_beside(tmp_path) == []


def test_an_interrupt_ends_the_workers_and_removes_what_was_begun(tmp_path):
    def interrupt(what, done, total):
        if done == 3:
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        ImagenetLike("small", samples=2000, classes=3, mean_kb=12).open(tmp_path, interrupt)
    assert left_beside(tmp_path) == []
    assert workers_of(os.getpid()) == []


def test_a_killed_worker_is_named(tmp_path):
    def kill(what, done, total):
        if done == 3:
            os.kill(workers_of(os.getpid())[0], signal.SIGKILL)

    with pytest.raises(DatasetError, match=r"process \d+, .*small.*SIGKILL"):
        ImagenetLike("small", samples=400, classes=3, mean_kb=12).open(tmp_path, kill)
    assert left_beside(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, heard, unprivileged):
    tmp_path.chmod(0o555)
    try:
        with unprivileged(), pytest.raises(DiskError, match="cache_dir"):
            SMALL.open(tmp_path / "cache", heard)
    finally:
        tmp_path.chmod(0o755)


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_too_small_a_disk_is_refused_before_anything_is_made(small_disk, heard):
    with pytest.raises(DiskError, match=r"^cache_dir: .*\d+ [kM]?B"):
        ImagenetLike("small", samples=200, classes=3, mean_kb=12).open(small_disk, heard)
    assert heard == []


@pytest.mark.root
def test_a_disk_that_fills_up_is_named_and_left_without_a_trace(small_disk, heard, monkeypatch):
    monkeypatch.setattr(generating, "check_room", lambda key, folder, needed: None)
    with pytest.raises(DiskError, match=r"\d+ [kM]?B") as error:
        ImagenetLike("small", samples=200, classes=3, mean_kb=12).open(small_disk, heard)
    assert str(small_disk) in str(error.value)
    assert left_beside(small_disk) == []


def test_synthetic_samples_are_all_of_about_one_size(tmp_path, heard):
    handle = Synthetic("synthetic", samples=8, mean_kb=300).open(tmp_path, heard)
    assert handle.samples.sizes == pytest.approx(np.full(8, 300_000), rel=0.1)
