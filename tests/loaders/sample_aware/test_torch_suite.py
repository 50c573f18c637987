"""torch's own tests of its DataLoader pass with SampleAwareDataLoader in its place, but for what is meant to differ.

torch's test file is fetched from Debian's source package of PyTorch, as text for the test, and kept in the user's cache
folder. It is of torch 2.6, the newest that Debian's stable release has, so its helpers are stand-ins here: those of the
torch that is installed need packages of their own and take longer to import than the tests run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

PERSISTENT = "TestDataLoaderPersistentWorkers"
NAMES = (
    "TestDataLoader", "TestDictDataLoader", "TestStringDataLoader", "TestNamedTupleDataLoader", "TestCustomPinFn",
    "TestSetAffinity", "TestConvAfterFork", "TestOutOfOrderDataLoader", "TestIndividualWorkerQueue",
    *(f"{PERSISTENT}.test_{name}" for name in (
        "builtin_collection_conversion", "dataset_not_reset", "early_exit", "error_in_init", "error_workers",
        "iterable_style_dataset", "multi_epochs_reproducibility", "partial_workers", "seqential_batch_workers",
        "shuffle_batch_workers", "shuffle_workers", "worker_init_fn", "worker_seed",
    )),
)  # fmt: skip
MEANT = {
    "TestDataLoader.test_shuffle_reproducibility": "batches of a random sampler are of the samples that are done first",
    "TestDataLoader.test_worker_seed_reproducibility": "any worker may have any sample, so some workers may have none",
    "TestIndividualWorkerQueue.test_ind_worker_queue": "any worker may have any sample",
    "TestOutOfOrderDataLoader.test_out_of_order_index_ds": "any worker may have any sample, so others overtake",
}
"""Tests that may fail, by what docs/sample_aware.md lists; some pass by chance."""

LEFT_OUT = {
    "TestDataLoader.test_get_worker_info": "not with torch's own class either: its WorkerInfo raises another error now",
    "TestDataLoader.test_fd_limit_exceeded": "starts an interpreter of its own, with torch's own class",
    "TestOutOfOrderDataLoader.test_in_order_iterable_ds": "torch's own loader serves an iterable dataset",
    "TestOutOfOrderDataLoader.test_out_of_order_iterable_ds": "torch's own, and a busy machine changes its order",
}
"""Tests that say nothing of this class."""

RELEASE, SECONDS = "trixie", 240
HELPERS = """
import sys, types, unittest, warnings
import numpy as np
import torch

class TestCase(unittest.TestCase):
    longMessage = True

    def assertEqual(self, first, second, msg=None):
        if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
            self.assertTrue(np.array_equal(first, second), msg or f"{first} != {second}")
        elif any(isinstance(one, (torch.Tensor, np.ndarray)) for one in (first, second)):
            one, other = (torch.as_tensor(one).reshape(-1) for one in (first, second))
            self.assertTrue(torch.equal(one, other), msg or f"{first} != {second}")
        elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
            self.assertTrue(len(first) == len(second), msg or f"{len(first)} != {len(second)}")
            for one, other in zip(first, second):
                self.assertEqual(one, other, msg)
        elif isinstance(first, dict) and isinstance(second, dict):
            self.assertTrue(first.keys() == second.keys(), msg or f"{first.keys()} != {second.keys()}")
            for name in first:
                self.assertEqual(first[name], second[name], msg)
        else:
            super().assertEqual(first, second, msg)

    def assertNotWarn(self, callable, msg=None):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            callable()

def same(test):
    return test

common = types.ModuleType("torch.testing._internal.common_utils")
common.__dict__.update(
    TestCase=TestCase, load_tests=None, run_tests=unittest.main, parametrize=lambda *given: same,
    skipIfNoDill=same, skipIfRocm=same, skipIfXpu=same, xfailIfLinux=unittest.expectedFailure,
    slowTest=unittest.skip("slow"), TEST_CUDA=torch.cuda.is_available(), TEST_NUMPY=True,
)
for name in (
    "IS_CI", "IS_JETSON", "IS_MACOS", "IS_SANDCASTLE", "IS_WINDOWS", "NO_MULTIPROCESSING_SPAWN", "TEST_WITH_ASAN",
    "TEST_WITH_ROCM", "TEST_WITH_TSAN",
):
    setattr(common, name, False)
devices = types.ModuleType("torch.testing._internal.common_device_type")
devices.instantiate_device_type_tests = lambda test_class, scope, **given: scope.pop(test_class.__name__)
internal = types.ModuleType("torch.testing._internal")
internal.__path__ = []
sys.modules |= {module.__name__: module for module in (internal, common, devices)}
"""
REPLACED = "\nfrom loaders import SampleAwareDataLoader as DataLoader\ntorch.utils.data.DataLoader = DataLoader\n"


RUNNER = f"""
import json, multiprocessing, os, signal, unittest
import test_dataloader as suite

def late(*_):
    raise TimeoutError("took more than {SECONDS} s")

class Told(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.found = dict()

    def startTest(self, test):
        super().startTest(test)
        print(test.id(), flush=True)
        signal.alarm({SECONDS})

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def note(self, test, how):
        self.found.setdefault(test.id().removeprefix("test_dataloader."), how)

    def addSuccess(self, test):
        self.note(test, "ok")

    def addSkip(self, test, reason):
        self.note(test, "skipped")

    def addError(self, test, error):
        print(self._exc_info_to_string(error, test), flush=True)
        self.note(test, f"{{error[0].__name__}}: {{error[1]}}".strip().splitlines()[0])

    addFailure = addError

    def addExpectedFailure(self, test, error):
        self.note(test, "skipped")

    def addUnexpectedSuccess(self, test):
        self.note(test, "ok")

if __name__ == "__main__":
    import sys
    signal.signal(signal.SIGALRM, late)
    multiprocessing.set_forkserver_preload(["test_dataloader"])
    load = unittest.defaultTestLoader
    tests = load.loadTestsFromNames([name for name in sys.argv[1:] if not name.startswith("-")], suite)

    def each(tests):
        for test in tests:
            yield from each(test) if isinstance(test, unittest.TestSuite) else [test]

    left_out = {{f"test_dataloader.{{name[1:]}}" for name in sys.argv[1:] if name.startswith("-")}}
    told = Told()
    unittest.TestSuite(test for test in each(tests) if test.id() not in left_out).run(told)
    with open("outcomes.json", "w") as file:
        json.dump(told.found, file)
    # Whatever a failed test has left does not keep the process.
    os._exit(0)
"""


class Unfetched(Exception):
    """The file cannot be had here."""


def fetched() -> str:
    """Return the text of torch's test file, from the cache or from Debian's source package; raises Unfetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "joulefeed" / "torch-suite"
    kept = cache / "test_dataloader.py"
    if not kept.exists():
        archive = _archive(cache / "apt")
        with tarfile.open(archive) as source:
            member = next((entry for entry in source if entry.name.endswith("/test/test_dataloader.py")), None)
            if member is None or (content := source.extractfile(member)) is None:
                raise Unfetched(f"{archive}: it has no test/test_dataloader.py")
            part = kept.with_suffix(".part")
            part.write_bytes(content.read())
        part.rename(kept)
        archive.unlink()
    return kept.read_text()


def _archive(folder: Path) -> Path:
    """Have apt fetch the source package with lists and folders of its own."""
    for part in ("lists/partial", "cache/archives/partial", "source"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    found = _apt(folder, ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)"])
    mirrors = {line.split()[1] for line in found.splitlines() if line.startswith("Debian http")}
    mirror = next((uri for uri in sorted(mirrors) if "security" not in uri), None)
    if mirror is None:
        raise Unfetched("apt knows no mirror of Debian: run apt-get update once")
    sources = folder / "sources.list"
    sources.write_text(f"deb-src {mirror} {RELEASE} main\n")
    options = [
        f"-oDir::Etc::sourcelist={sources}", "-oDir::Etc::sourceparts=-", f"-oDir::State::lists={folder / 'lists'}",
        f"-oDir::Cache={folder / 'cache'}", "-oAPT::Sandbox::User=root",
    ]  # fmt: skip
    _apt(folder, ["apt-get", *options, "update", "-qq"])
    _apt(folder / "source", ["apt-get", *options, "source", "--download-only", "-qq", "pytorch"])
    return next((folder / "source").glob("pytorch_*.orig.tar.*"))


def _apt(folder: Path, argv: list[str]) -> str:
    try:
        return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, timeout=300).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unfetched(f"{' '.join(argv[:1])} did not fetch PyTorch's source package: {error}") from error


def outcomes(folder: Path, names: Sequence[str], *, seconds: float) -> dict[str, str]:
    """Run the tests of these names in a folder; return by the name of a test how it ended.

    A name with a dash before it leaves its test out. A test ended "ok", "skipped", or with the last line of the error.
    """
    marker = "\n\ntry:\n    import psutil\n"
    text = fetched()
    assert text.count(marker) == 1
    text = text.replace("JOIN_TIMEOUT = 60.0", f"JOIN_TIMEOUT = {0.9 * SECONDS}")
    # Each process that is spawned imports torch; those of a fork server share one import.
    text = text.replace('"spawn"', '"forkserver"').replace("batch_size=40960", "batch_size=10240")
    (folder / "test_dataloader.py").write_text(HELPERS + text.replace(marker, REPLACED + marker))
    (folder / "run.py").write_text(RUNNER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[3])])}
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, "-W", "ignore", "run.py", *names], check=True, cwd=folder, env=environment, stdout=log,
            stderr=log, timeout=seconds,
        )  # fmt: skip
    found: dict[str, str] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.mark.timeout(1300)
def test_torch_s_own_tests_pass_but_for_what_is_meant_to_differ(tmp_path):
    try:
        fetched()
    except Unfetched as error:
        pytest.skip(str(error))
    found = outcomes(tmp_path, [*NAMES, *(f"-{name}" for name in LEFT_OUT)], seconds=1200)
    assert not found.keys() & LEFT_OUT.keys()
    failed = {name: how for name, how in found.items() if how not in ("ok", "skipped")}
    assert failed.keys() <= MEANT.keys(), failed
    assert sum(how == "ok" for how in found.values()) > 60
