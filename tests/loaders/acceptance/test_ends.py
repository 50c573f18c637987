"""Loaders end when they are told to, in the middle of an epoch too, and leave nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loaders import LoaderError

INTERRUPTED = """
import importlib, json, os, signal, sys, time
import psutil
from pathlib import Path
import loaders.pytorch, loaders.dali, loaders.spdl, loaders.spdl.image
from loaders import ImageTransform, Samples
samples = Samples.load(Path(sys.argv[1]))
for line in sys.stdin:
    target, options = json.loads(line)
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        # Each in a process of its own, as a training script: with its children, it gets the terminal's Ctrl-C.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        module, name = target.rsplit(".", 1)
        status = 1
        try:
            common = {"samples": samples, "transform": ImageTransform(size=64), "batch_size": 2, "seed": 0}
            with getattr(importlib.import_module(module), name)(**common, **options) as loader:
                for epoch in range(1_000_000):
                    for batch in loader.epoch(epoch):
                        if epoch == 1:
                            os.write(told, b"x")
        except KeyboardInterrupt:
            status = 130
        finally:
            sys.stdout.flush()
            if status == 130:
                sys.exit(130)
            os._exit(status)
    os.read(ready, 1)
    workers = [each.pid for each in psutil.Process(child).children(recursive=True)]
    os.killpg(child, signal.SIGINT)
    began = time.monotonic()
    _, status = os.waitpid(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, child, workers]), flush=True)
"""


def test_close_in_mid_epoch_ends_everything_and_may_be_repeated(any_pair):
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
    names = [path.name for path in Path("/dev/shm").glob("torch_*")]
    assert not [name for name in names if not psutil.pid_exists(int(name.split("_")[1]))]


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


def test_ctrl_c_ends_a_training_script_and_leaves_nothing(datasets, table, tmp_path):
    entries = {name: entry for name, entry in table.items() if not entry.streams}
    datasets["image"].samples.save(tmp_path / "samples.parquet")
    orders = "".join(json.dumps([entry.target, entry.options]) + "\n" for entry in entries.values())
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "samples.parquet")],
        input=orders,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(told) == len(entries)
    for name, (status, seconds, pid, workers) in zip(entries, told, strict=True):
        assert status == 130, name
        assert seconds < 10, name
        assert not [each for each in workers if psutil.pid_exists(each)], name
        assert not list(Path("/dev/shm").glob(f"torch_{pid}_*")), name
