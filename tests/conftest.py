"""What is true of every test: its signals, and the two groups that a marker makes.

`process` marks tests that start processes, servers or namespaces, or take seconds: `--fast` leaves them out, and fails
every other test that starts a process or connects to another host. `serial` marks tests that other tests would disturb:
they remove what dead runs have left, or judge how long something took. With pytest-xdist such a test runs while no
other test does. Serial tests come first, one after the other, and tests without a marker last: they are short, so that
the workers end together.
"""

from __future__ import annotations

import fcntl
import gc
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

# What tests import are many objects that stay: looking for garbage among them would take a tenth of the collection.
gc.disable()

# A shell that starts something in the background has it ignore Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}
# They end at once. The first import of torch in a process looks for libraries with ldconfig, or else with a compiler.
_QUICK = {"git", "nvidia-smi", "systemd-detect-virt", "cc", "gcc", "ldconfig", "ld"}
_CONNECTS = {"socket.connect", "socket.sendto"}
_HERE = ("127.", "::1", "localhost")
_NONE_IS_FAST = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(process|serial)\b", re.MULTILINE)
_IS_SLOW = re.compile(r"pytest\.mark\.slow\b")
_WAITING = (
    *(
        "tests/integration/test_hosts_run.py",
        "tests/integration/test_ranks_run.py",
        "tests/testbed/hosts/test_playbook.py",
    ),
    *("tests/integration/test_run.py", "tests/hosts/", "tests/integration/"),
)
"""Files whose tests wait for minutes, the longest first."""


@pytest.fixture(scope="session", autouse=True)
def no_calibrations_of_the_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all agents that are started an empty folder of calibrations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENERGYMON_STATE", str(tmp_path_factory.mktemp("calibrations")))
        yield


@pytest.fixture(scope="session")
def shared_memory_left() -> Callable[[set[Path]], set[Path]]:
    """List the files in /dev/shm that were not there `before`, once other tests had time to remove theirs.

    Without sem.XXXXXX: so sem_open(3) calls a semaphore in the making. A process that is killed in that instant leaves
    32 bytes, and nobody can tell whose they were.
    """

    def find(before: set[Path]) -> set[Path]:
        left = {path for path in Path("/dev/shm").iterdir() if not re.fullmatch(r"sem\.\w{6}", path.name)} - before
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left &= set(Path("/dev/shm").iterdir())
        return left

    return find


class NotFastError(RuntimeError):
    """A test without the marker `process` did what only a test with it may do."""


def _is_another_host(address: object) -> bool:
    return isinstance(address, tuple) and not str(address[0]).startswith(_HERE)


class _Guard:
    """Refuses processes and connections to other hosts, through Python's audit hooks, while a test runs."""

    def __init__(self) -> None:
        self._running = False
        self._refused: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        # Python reports every id() and every attribute that is looked up by name: this is called millions of times.
        if not self._running or (event not in _STARTS and event not in _CONNECTS):
            return
        program = Path(str(arguments[0])).name if arguments else ""
        if event in _STARTS and program not in _QUICK:
            self._refuse(f"started a process ({event}{f' {program}' if program else ''})")
        elif event in _CONNECTS and _is_another_host(arguments[1]):
            self._refuse(f"connected to {arguments[1]}")

    def _refuse(self, deed: str) -> None:
        self._refused.append(deed)
        raise NotFastError(f"a test that {deed} needs the marker `process`")

    @contextmanager
    def watch(self) -> Iterator[None]:
        self._running, self._refused = True, []
        try:
            yield
        finally:
            self._running = False
        # The code under test may have caught the refusal.
        if self._refused:
            pytest.fail(f"this test {self._refused[0]}: give it the marker `process`", pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no process and reach no other host")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        config.pluginmanager.register(_Fast())
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.pluginmanager.register(_Turns())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file that says to have no test of the wanted group: its imports would take most of the time."""
    if collection_path.suffix != ".py":
        return None
    text, beside = collection_path.read_text(), collection_path.with_name("conftest.py")
    if config.getoption("--fast"):
        return _NONE_IS_FAST.search(text) is not None or None
    if config.getoption("markexpr") == "slow":
        return _IS_SLOW.search(text + (beside.read_text() if beside.exists() else "")) is None or None
    return None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `--fast` a worker more than processors, as some tests wait; else two a processor, as many do; six at most.

    A worker and the processes of its tests take 2 GB.
    """
    processors, memory_gb = len(os.sched_getaffinity(0)), psutil.virtual_memory().total // 10**9
    return max(1, min(6, memory_gb // 2, processors + 1 if config.getoption("--fast") else 2 * processors))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files = list(dict.fromkeys(_file_of(item) for item in items if item.get_closest_marker("process")))
    waiting = sorted((file for file in files if file.startswith(_WAITING)), key=_waits)
    places: dict[str, float] = {file: number for number, file in enumerate(one for one in files if one not in waiting)}
    # Not until the end: what comes last is short.
    places |= {file: number * 0.8 * len(places) / len(waiting) - 0.5 for number, file in enumerate(waiting)}
    items.sort(key=lambda item: _turn(item, places))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _waits(file: str) -> int:
    return next(number for number, prefix in enumerate(_WAITING) if file.startswith(prefix))


def _turn(item: pytest.Item, places: dict[str, float]) -> tuple[int, float]:
    if item.get_closest_marker("serial"):
        return 0, 0
    if item.get_closest_marker("process"):
        return 1, places[_file_of(item)]
    return 2, 0


def pytest_collection_finish() -> None:
    gc.collect()  # what stays is old from now on, and is seldom looked at again
    gc.enable()


class _Fast:
    """Leaves out the tests with the marker `process` and guards the others."""

    def __init__(self) -> None:
        self._guard = _Guard()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.get_closest_marker("process") or item.get_closest_marker("serial")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        with self._guard.watch():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with self._guard.watch():
            return (yield)


class _Turns:
    """Lets a test marked `serial` run while no other worker runs a test: a lock that all share, or one has alone."""

    def __init__(self) -> None:
        # While a worker waits for the room it keeps the door: a serial test need not wait until the others pause.
        self._door, self._room = os.open(__file__, os.O_RDONLY), os.open(Path(__file__).parent, os.O_RDONLY)
        self._alone = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        if not self._alone:
            self._alone = item.get_closest_marker("serial") is not None
            fcntl.flock(self._door, fcntl.LOCK_EX)
            fcntl.flock(self._room, fcntl.LOCK_EX if self._alone else fcntl.LOCK_SH)
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # It stays alone for the next serial test: the others would run only one test each in between.
            self._alone = self._alone and nextitem is not None and nextitem.get_closest_marker("serial") is not None
            if not self._alone:
                fcntl.flock(self._room, fcntl.LOCK_UN)

    def pytest_sessionfinish(self) -> None:
        """Leave the room where the next serial test, for which it was kept, is not run: after a failure with -x."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
