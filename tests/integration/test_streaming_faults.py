"""Parts of the streaming service die, stall and lose one another at random points; every id comes exactly once."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link import COMPUTE_ADDRESS, INTERFACE, STORAGE_ADDRESS, open_link
from loaders.base import Samples
from loaders.records.shards.convert import convert
from loaders.streaming.keys import make_keys
from tests.loaders.streaming.relay import Relay

pytestmark = pytest.mark.process

SAMPLES, BATCH_SIZE, EPOCHS = 301, 8, 2
BATCHES = EPOCHS * -(-SAMPLES // BATCH_SIZE)
LAST_STRIKE = BATCHES // 2
"""A part is struck when at most so many batches have come, so that there is enough left to ask for."""
TIMEOUT_S = 20.0
ROUND_S = 60.0

RECEIVER = """
import pickle, time
from loaders.errors import LoaderError
from loaders.streaming import StreamingLoader

if namespace:
    from harness.testbed.link.namespace import enter
    enter(namespace)
done = pickle.loads(checkpoint.read_bytes()) if checkpoint.exists() else {"ids": [[]], "state": {}}
try:
    with StreamingLoader(decode="raw", batch_size=8, seed=0, warm_bytes=0, **arguments) as loader:
        loader.load_state_dict(done["state"])
        for epoch in range(len(done["ids"]) - 1, epochs):
            for batch in loader.epoch(epoch):
                for sample_id, image in zip(batch.ids.tolist(), batch.images()):
                    assert not marked or bytes(image[:8]) == b"%08d" % sample_id, f"sample {sample_id} of other data"
                done["ids"][epoch] += batch.ids.tolist()
                done["state"] = loader.state_dict()
                checkpoint.with_suffix(".new").write_bytes(pickle.dumps(done))
                checkpoint.with_suffix(".new").rename(checkpoint)
                answers.send(("batch", sum(map(len, done["ids"]))))
                time.sleep(0.01)
            done["ids"].append([])
        answers.send(("finished", loader.stats().details["asked_again"]))
except LoaderError as error:
    answers.send(("error", f"{type(error).__name__}: {error}"))
"""

_PROCESSES = multiprocessing.get_context("forkserver")
# What takes seconds to import is imported once, and not by every receiver.
_PROCESSES.set_forkserver_preload(["loaders.streaming.loader"])


class Receiver:
    """A training process that saves a checkpoint with every batch, and may be killed and started again."""

    def __init__(self, script: Path, **what: object) -> None:
        self.answers, theirs = _PROCESSES.Pipe(duplex=False)
        self.process = _PROCESSES.Process(
            target=runpy.run_path, args=(str(script),), kwargs={"init_globals": {"answers": theirs, **what}}
        )
        self.process.start()
        theirs.close()

    def until(self, batches: int) -> None:
        """Wait until so many batches have come, those before it was started included."""
        while True:
            kind, said = self.hear()
            assert kind == "batch", said
            if int(said) >= batches * BATCH_SIZE:
                return

    def end(self) -> tuple[str, str | int]:
        """Return the last that it says."""
        while (heard := self.hear())[0] == "batch":
            pass
        self.process.join(ROUND_S)
        return heard

    def hear(self) -> tuple[str, str | int]:
        """Return the next that it says: how many samples have come, how it finished, or its error."""
        assert self.answers.poll(ROUND_S), "the receiver says nothing"
        kind, said = self.answers.recv()
        return str(kind), said

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.answers.close()


class Round:
    """Two epochs from one daemon, with what is needed to disturb them."""

    def __init__(
        self,
        shards: Path,
        folder: Path,
        *,
        host: str,
        namespaces: tuple[str, ...] = (),
        locked: bool = False,
        epochs: int = EPOCHS,
        marked: bool = False,
    ) -> None:
        self._shards, self.host, self._epochs, self._marked = shards, host, epochs, marked
        self._storage, self._compute = namespaces or (None, None)
        self._keys = make_keys(folder / "keys") if locked else None
        self._script = folder / "receiver.py"
        self._script.write_text(RECEIVER)
        self._checkpoint = folder / "checkpoint"
        self._daemons: list[subprocess.Popen[str]] = []
        self._receivers: list[Receiver] = []
        self.daemon, self.port = self._start_daemon(0)
        self.endpoint = f"tcp://{host}:{self.port}"

    def _start_daemon(self, port: int) -> tuple[subprocess.Popen[str], int]:
        enter = ["nsenter", f"--net={self._storage}"] if self._storage else []
        serve = [sys.executable, "-m", "loaders.streaming", "serve", "--until-eof", "--root", str(self._shards)]
        who = ["--keys", str(self._keys[0])] if self._keys else ["--no-auth"] if self._storage else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        argv = [*enter, *serve, "--listen", f"{self.host}:{port}", *who]
        daemon = subprocess.Popen(argv, text=True, **pipes)
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        ready = json.loads(daemon.stdout.readline())
        self._serving = int(ready["pid"])
        return daemon, int(ready["endpoint"].rpartition(":")[2])

    def signal_daemon(self, number: signal.Signals) -> None:
        """Send a signal to the process that serves, over which the one that was started watches."""
        os.kill(self._serving, number)

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon.communicate()

    def restart_daemon(self) -> None:
        self.daemon, port = self._start_daemon(self.port)
        assert port == self.port

    def leave_unanswered(self) -> None:
        """Stop the daemon for as long as it takes that the receiver has asked for what nobody answers."""
        self.signal_daemon(signal.SIGSTOP)
        time.sleep(0.3)

    def receive(self, *, endpoint: str | None = None, timeout_s: float = TIMEOUT_S) -> Receiver:
        arguments = {"endpoint": endpoint or self.endpoint, "streams": 3, "prefetch_batches": 6, "timeout_s": timeout_s}
        if self._keys:
            arguments["keys"] = self._keys[1]
        what = {"checkpoint": self._checkpoint, "namespace": self._compute, "epochs": self._epochs}
        what |= {"marked": self._marked, "arguments": arguments}
        self._receivers.append(Receiver(self._script, **what))
        return self._receivers[-1]

    def finish(self, receiver: Receiver, samples: int = SAMPLES) -> int:
        """Check that every epoch brings every id exactly once; return how many requests were repeated."""
        kind, said = receiver.end()
        assert kind == "finished", said
        done = pickle.loads(self._checkpoint.read_bytes())
        assert [sorted(ids) for ids in done["ids"]] == [list(range(samples))] * self._epochs
        return int(said)

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.kill()
        for daemon in self._daemons:
            if daemon.poll() is None:
                daemon.kill()
                daemon.communicate()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    chance = np.random.default_rng(0)
    (root / "image.bin").write_bytes(chance.bytes(20_000))
    samples = Samples(root, ("image.bin",) * SAMPLES, np.zeros(SAMPLES, np.int64), np.full(SAMPLES, 20_000))
    return convert(samples, root / "shards", key="a", shard_bytes=3_000_000)


@pytest.fixture
def rounds(shards: Path, tmp_path: Path) -> Iterator[Callable[..., Round]]:
    """Begin rounds, each in a folder of its own, that end with the test."""
    begun: list[Round] = []
    numbers = itertools.count()

    def begin(**options: object) -> Round:
        number = next(numbers)
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        # An address of its own, for a daemon that comes back wants the port that it had.
        begun.append(Round(folder=folder, **{"shards": shards, "host": f"127.0.1.{number + 1}"} | options))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


Rounds = Callable[..., Round]


def at_once(play: Callable[..., None], *cases: object) -> None:
    """Play a round a case, all at the same time, for they mostly wait; an error tells its case."""
    with ThreadPoolExecutor(len(cases)) as threads:
        played = [threads.submit(play, case) for case in cases]
    for case, one in zip(cases, played, strict=True):
        if (error := one.exception()) is not None:
            error.add_note(f"in the round of {case!r}")
            raise error


def test_a_daemon_that_is_killed_and_comes_back_costs_no_sample(rounds: Rounds) -> None:
    at_once(lambda seed: kill_and_restart_daemon(rounds, seed), 1, 4)


@pytest.mark.slow
def test_daemons_that_are_killed_at_other_moments_cost_no_sample(rounds: Rounds) -> None:
    at_once(lambda seed: kill_and_restart_daemon(rounds, seed), 0, 2, 3, 5)


def kill_and_restart_daemon(rounds: Rounds, seed: int) -> None:
    chance, run = random.Random(seed), rounds(locked=seed > 3)
    receiver = run.receive()
    for earliest in (1, LAST_STRIKE // 2) if seed < 2 else (1,):
        receiver.until(earliest + chance.randrange(LAST_STRIKE // 2))
        if seed % 2:
            run.leave_unanswered()
        run.kill_daemon()
        time.sleep(chance.uniform(0, 0.5))
        run.restart_daemon()
    asked_again = run.finish(receiver)
    assert asked_again or not seed % 2


def test_a_receiver_that_is_killed_goes_on_from_its_checkpoint(rounds: Rounds) -> None:
    at_once(lambda seed: kill_receivers(rounds, seed), 2, 3)


def kill_receivers(rounds: Rounds, seed: int) -> None:
    chance, run = random.Random(seed), rounds(locked=seed > 2)
    for strike in sorted(chance.sample(range(1, BATCHES - 2), 3)):
        receiver = run.receive()
        receiver.until(strike)
        time.sleep(chance.uniform(0, 0.02))
        receiver.kill()
    run.finish(run.receive())


@pytest.mark.slow
def test_daemon_and_receiver_that_die_together_go_on_together(rounds: Rounds) -> None:
    at_once(lambda seed: kill_both(rounds, seed), *range(2))


def kill_both(rounds: Rounds, seed: int) -> None:
    chance, run = random.Random(seed), rounds(locked=bool(seed))
    receiver = run.receive()
    receiver.until(chance.randint(1, LAST_STRIKE))
    run.kill_daemon()
    receiver.kill()
    receiver = run.receive()
    time.sleep(chance.uniform(0, 0.5))
    run.restart_daemon()
    run.finish(receiver)


def test_connections_that_are_cut_are_made_again(rounds: Rounds) -> None:
    at_once(lambda seed: cut_connections(rounds, seed), 0, 1)


def cut_connections(rounds: Rounds, seed: int) -> None:
    chance, run = random.Random(seed), rounds()
    relay = Relay(run.port, host=run.host)
    receiver = run.receive(endpoint=relay.endpoint)
    receiver.until(chance.randint(1, LAST_STRIKE))
    if seed % 2:
        run.leave_unanswered()
    relay.cut()
    run.signal_daemon(signal.SIGCONT)
    asked_again = run.finish(receiver)
    assert asked_again or not seed % 2
    relay.close()


@pytest.mark.slow
def test_a_daemon_that_stalls_for_three_seconds_costs_no_sample(rounds: Rounds) -> None:
    at_once(lambda seed: stall_daemon(rounds, seed), *range(3))


def stall_daemon(rounds: Rounds, seed: int) -> None:
    chance, run = random.Random(seed), rounds(locked=seed == 1)
    # In the last round the receiver connects again after two seconds of silence, half of its timeout.
    receiver = run.receive(timeout_s=4.0 if seed == 2 else TIMEOUT_S)
    receiver.until(chance.randint(1, LAST_STRIKE))
    run.signal_daemon(signal.SIGSTOP)
    time.sleep(3)
    run.signal_daemon(signal.SIGCONT)
    asked_again = run.finish(receiver)
    assert asked_again or seed != 2


def test_a_daemon_that_does_not_come_back_is_named_within_the_timeout(rounds: Rounds) -> None:
    at_once(lambda way: lose_daemon(rounds, way), "killed", "stopped")


def lose_daemon(rounds: Rounds, way: str) -> None:
    run, timeout_s = rounds(), 3.0
    receiver = run.receive(timeout_s=timeout_s)
    receiver.until(5)
    run.daemon.kill() if way == "killed" else run.signal_daemon(signal.SIGSTOP)
    died = time.monotonic()
    kind, said = receiver.end()
    assert kind == "error"
    assert "StreamError" in str(said) and run.endpoint in str(said)
    # What had arrived is delivered first, a batch every 10 ms.
    assert time.monotonic() - died < 2 * timeout_s


@contextlib.contextmanager
def linked(number: int) -> Iterator[tuple[str, ...]]:
    """Two namespaces with a link of 10 ms and 1 Gbit/s between them: the paths of storage and compute."""
    names = [f"jf-fault{os.getpid():x}{number}-{role}" for role in ("storage", "compute")]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        paths = tuple(f"/run/netns/{name}" for name in names)
        try:
            opened = open_link(*paths)
        except TestbedError as error:
            pytest.skip(str(error))
        with opened:
            opened.set(Regime(name="wan_10ms", rtt_ms=10, rate_gbit=1))
            yield paths
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2 for network namespaces"
)
def test_an_outage_of_nine_tenths_of_the_timeout_costs_no_sample(rounds: Rounds) -> None:
    with contextlib.ExitStack() as links:
        cases = [(links.enter_context(linked(number)), way, number) for number, way in enumerate(OUTAGES)]
        at_once(lambda case: lose_link(rounds, *case), *cases)


OUTAGES = {
    "storage is down": (0, ["link", "set", INTERFACE, "down"], ["link", "set", INTERFACE, "up"]),
    "compute is down": (1, ["link", "set", INTERFACE, "down"], ["link", "set", INTERFACE, "up"]),
    "packets are lost": (0, ["route", "add", "blackhole", COMPUTE_ADDRESS], ["route", "del", COMPUTE_ADDRESS]),
}
"""By name: the namespace, and the arguments of ip(8) that begin and end an outage."""
OUTAGE_TIMEOUT_S = 10.0


def lose_link(rounds: Rounds, namespaces: tuple[str, ...], way: str, seed: int) -> None:
    run = rounds(host=STORAGE_ADDRESS, namespaces=namespaces, locked=bool(seed % 2))
    receiver = run.receive(timeout_s=OUTAGE_TIMEOUT_S)
    receiver.until(random.Random(seed).randint(1, LAST_STRIKE))
    side, begin, end = OUTAGES[way]
    command = ["ip", "-n", Path(namespaces[side]).name]
    subprocess.run([*command, *begin], check=True)
    time.sleep(0.9 * OUTAGE_TIMEOUT_S)
    subprocess.run([*command, *end], check=True)
    run.finish(receiver)


LONG_EPOCHS = int(os.environ.get("JOULEFEED_FAULT_EPOCHS", "10"))
"""Epochs of the run with every kind of fault; JOULEFEED_FAULT_EPOCHS=150 takes some minutes."""
MARKED = 96
LONG_TIMEOUT_S = 5.0


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Two shard folders of the same sizes; each record of the first begins with its id."""
    folders = []
    for name, mark in (("own", 0), ("other", 1000)):
        root = tmp_path / name
        root.mkdir()
        paths = tuple(f"{number:03d}.bin" for number in range(MARKED))
        for number, path in enumerate(paths):
            (root / path).write_bytes(b"%08d" % (mark + number) * 500)
        samples = Samples(root, paths, np.zeros(MARKED, np.int64), np.full(MARKED, 4000))
        folders.append(convert(samples, tmp_path / f"{name}-shards", key=name, shard_bytes=80_000))
    return folders[0], folders[1]


def _overwrite(root: Path, other: Path) -> None:
    """Put the bytes of another folder's shards into a folder, under its daemon."""
    for shard in other.glob("*.tfrecord"):
        with (root / shard.name).open("r+b") as file:
            file.write(shard.read_bytes())


def _replace(root: Path, other: Path) -> None:
    """Put the files of another folder into one."""
    for file in other.iterdir():
        (root / file.name).unlink(missing_ok=True)
        shutil.copy2(file, root)


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * LONG_EPOCHS)
def test_epochs_with_every_kind_of_fault_are_whole_and_of_one_content(
    rounds: Rounds, twins: tuple[Path, Path], tmp_path: Path
) -> None:
    own, other = twins
    served = Path(shutil.copytree(own, tmp_path / "served"))
    run = rounds(shards=served, epochs=LONG_EPOCHS, marked=True)
    relay = Relay(run.port, host=run.host)
    chance = random.Random(0)
    per_epoch = MARKED // BATCH_SIZE
    kinds = ("daemon", "receiver", "cut", "stall", "restarted on other data", "overwritten", "outage")
    counts = dict.fromkeys(kinds, 0)
    receiver = run.receive(endpoint=relay.endpoint, timeout_s=LONG_TIMEOUT_S)
    # The last epochs are left alone, so that none of the faults comes when all is under way already.
    for epoch in range(LONG_EPOCHS - 3):
        receiver.until(epoch * per_epoch + chance.randrange(1, per_epoch))
        kind = kinds[epoch] if epoch < len(kinds) else chance.choice(kinds)
        counts[kind] += 1
        os.kill(receiver.process.pid, signal.SIGSTOP)
        match kind:
            case "daemon":
                run.kill_daemon()
                run.restart_daemon()
            case "receiver":
                receiver.kill()
            case "cut":
                relay.cut()
            case "stall":
                run.signal_daemon(signal.SIGSTOP)
                os.kill(receiver.process.pid, signal.SIGCONT)
                time.sleep(0.5)
                run.signal_daemon(signal.SIGCONT)
            case "outage":
                # Nothing comes and nothing is refused, for up to 0.9 of the timeout.
                run.signal_daemon(signal.SIGSTOP)
                relay.cut()
                os.kill(receiver.process.pid, signal.SIGCONT)
                time.sleep(chance.uniform(0.3, 0.9) * LONG_TIMEOUT_S)
                run.signal_daemon(signal.SIGCONT)
            case "restarted on other data":
                run.kill_daemon()
                _replace(served, other)
                run.restart_daemon()
                os.kill(receiver.process.pid, signal.SIGCONT)
                error, said = receiver.end()
                assert error == "error" and "not those that this client planned with" in str(said), (error, said)
                run.kill_daemon()
                _replace(served, own)
                run.restart_daemon()
            case "overwritten":
                _overwrite(served, other)
                os.kill(receiver.process.pid, signal.SIGCONT)
                error, said = receiver.end()
                assert error == "error" and "is not the one that was indexed" in str(said), (error, said)
                _overwrite(served, own)
        if kind in ("receiver", "restarted on other data", "overwritten"):
            receiver = run.receive(endpoint=relay.endpoint, timeout_s=LONG_TIMEOUT_S)
        else:
            os.kill(receiver.process.pid, signal.SIGCONT)
    run.finish(receiver, MARKED)
    relay.close()
    print(f"{LONG_EPOCHS} epochs of {MARKED} samples, 0 missing, 0 twice, 0 of other data; faults: {counts}")
