"""Loaders end when they are told to, in the middle of an epoch too, and leave nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from loaders import LoaderError
from tests.integration.runs import has_ended, wait_until

pytestmark = pytest.mark.process

TRAINING = """
import ctypes, importlib, json, os, signal, sys, time
import psutil
from pathlib import Path
import loaders.pytorch, loaders.dali, loaders.spdl, loaders.spdl.image
from loaders import ImageTransform, Samples

def train(target, options, told):
    module, name = target.rsplit(".", 1)
    common = {"samples": samples, "transform": ImageTransform(size=64), "batch_size": 2, "seed": 0}
    with getattr(importlib.import_module(module), name)(**common, **options) as loader:
        for epoch in range(1_000_000):
            for batch in loader.epoch(epoch):
                if epoch == 1:
                    os.write(told, b"x")

order = json.loads(sys.stdin.readline())
samples = Samples.load(Path(order["samples"]))
for target, options in order["loaders"]:
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        # Each in a process of its own, as a training script: with its children, it gets the terminal's Ctrl-C.
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it never ends by itself: with this process at the latest
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # PyTorch's own __del__ of a storage loses a Ctrl-C that comes meanwhile: it comes again, as from a user.
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        sys.unraisablehook = lambda lost: (
            lost.exc_type is KeyboardInterrupt and "StorageWeakRef" in repr(lost.object) and signal.setitimer(0, 0.1)
        )
        status = 1
        try:
            train(target, options, told)
        except KeyboardInterrupt:
            status = 130
        finally:
            sys.stdout.flush()
            if status == 130:
                sys.exit(130)
            os._exit(status)
    os.close(told)
    os.read(ready, 1)
    workers = [each.pid for each in psutil.Process(child).children(recursive=True)]
    os.killpg(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), child, workers]), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def training():
    """Begin to import the engines, which takes seconds, while other tests run; what is to be trained comes later."""
    with subprocess.Popen([sys.executable, "-c", TRAINING], stdin=PIPE, stdout=PIPE, text=True) as process:
        yield process
        process.kill()


def test_close_in_mid_epoch_ends_everything_and_may_be_repeated(any_pair, orphaned_memory):
    others = set(psutil.Process().children(recursive=True))
    loader = any_pair.make()
    epoch = loader.epoch(0)
    next(epoch)
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(epoch)
    with pytest.raises(LoaderError, match="closed"):
        next(loader.epoch(1))
    left = [child for child in psutil.Process().children(recursive=True) if child not in others]
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]
    assert not orphaned_memory()


def test_a_loader_that_is_dropped_in_mid_epoch_ends_its_processes(any_loader):
    others = set(psutil.Process().children(recursive=True))
    epoch = any_loader.make().epoch(0)
    next(epoch)
    epoch.close()
    del epoch
    gc.collect()
    left = [child for child in psutil.Process().children(recursive=True) if child not in others]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive


def test_ctrl_c_ends_a_training_script_and_leaves_nothing(training, datasets, table, tmp_path):
    entries = {name: entry for name, entry in table.items() if not entry.streams}
    datasets["image"].samples.save(tmp_path / "samples.parquet")
    order = {
        "samples": str(tmp_path / "samples.parquet"),
        "loaders": [[entry.target, entry.options] for entry in entries.values()],
    }
    out, _ = training.communicate(json.dumps(order) + "\n", timeout=270)
    told = [json.loads(line) for line in out.splitlines()]
    assert len(told) == len(entries)
    for name, (status, pid, workers) in zip(entries, told, strict=True):
        assert status == 130, name
        # An orphan needs a processor to see that its parent has gone, and init one to hear of its end.
        assert wait_until(lambda pids=workers: all(map(has_ended, pids)), 60), name
        assert not list(Path("/dev/shm").glob(f"torch_{pid}_*")), name
