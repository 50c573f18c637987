"""A program asks the agent beside it to read its sensors at the edges of a window."""

import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import energymon
from energymon import SqliteStore
from energymon.clock.monotonic import boot_ns
from energymon.sampling.edges import Asker, EdgeListener, follow_ups_ns, socket_path
from tests.energymon.conftest import one_by_one

REPO = Path(__file__).parents[2]


@contextmanager
def served(store):
    """Answer requests on a thread, as the timekeeper does."""
    stop = threading.Event()

    def serve(listener):
        while not stop.wait(0.001):
            if listener.serve():
                listener.answer()

    with closing(EdgeListener(socket_path(store))) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener
        stop.set()
        thread.join()


@pytest.fixture
def counting(tmp_path):
    """A tree of two sockets that counts in a process of its own, every 20 ms."""
    tree = REPO / "tests/energymon/trees.py"
    argv = [sys.executable, tree, "--root", tmp_path / "sys", "--tree", "intel-two-sockets"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield tmp_path / "sys"
    process.communicate(timeout=10)


def test_an_edge_lies_between_asking_and_the_answer(tmp_path):
    with served(tmp_path / "e.sqlite"), closing(Asker(tmp_path / "e.sqlite")) as asker:
        for _ in range(3):
            before_ns = boot_ns()
            assert before_ns <= asker.edge_ns() <= boot_ns()


def test_a_store_whose_path_is_longer_than_a_sockets_address_has_one(tmp_path):
    folder = tmp_path / ("jöule feed " + "x" * 150)
    folder.mkdir()
    with served(folder / "e.sqlite"), closing(Asker(folder / "e.sqlite")) as asker:
        assert asker.edge_ns() is not None


def test_what_a_dead_agent_left_is_replaced_and_nothing_is_left_at_the_end(tmp_path):
    store = tmp_path / "e.sqlite"
    socket_path(store).touch()
    with pytest.raises(OSError, match="refused"):
        Asker(store)
    with served(store), closing(Asker(store)) as asker:
        assert asker.edge_ns() is not None
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_does_not_answer_holds_up_no_window_and_its_late_answer_is_not_taken_for_the_next(tmp_path):
    store = tmp_path / "e.sqlite"
    with closing(EdgeListener(socket_path(store))) as listener, closing(Asker(store)) as asker:
        before_s = time.monotonic()
        assert asker.edge_ns() is None
        assert time.monotonic() - before_s < 2
        listener.serve()
        assert listener.serve()
        listener.answer()
        assert asker.edge_ns() is None


def test_programs_that_go_and_programs_that_talk_nonsense_are_let_go(tmp_path):
    store = tmp_path / "e.sqlite"
    with served(store) as listener:
        for said in (b"", b"x", b"y" * 100):
            asker = Asker(store)
            if said:
                asker._socket.send(said)
            asker.close()
        with closing(Asker(store)) as asker:
            assert asker.edge_ns() is not None
            assert len(listener._programs) == 1


def test_what_follows_an_edge_reaches_past_the_lag_of_each_counter_that_is_quick():
    follow = follow_ups_ns([0.001, 0.1, 1.5, 0.0])
    assert follow[0] == 0
    assert {1_000_000, 1_250_000, 100_000_000, 125_000_000} <= set(follow)
    assert max(follow) == 125_000_000


@pytest.mark.process
@pytest.mark.parametrize("compiled", ["0", "1"])
def test_a_window_has_readings_at_its_edges_and_a_bound_of_an_update_or_two(counting, compiled, monkeypatch):
    """20 ms of 150 W are 3 J: at ticks of half a second alone the bound would be 75 J."""
    monkeypatch.setenv("ENERGYMON_COMPILED", compiled)
    monkeypatch.setattr("energymon.sampling.edges._PATIENCE_S", 10.0)
    with energymon.Agent(interval_ms=500, options=["--sysfs", str(counting)]) as agent:
        time.sleep(1)
        with energymon.Window(agent=agent) as window:
            time.sleep(0.05)
        with SqliteStore.open(agent.store) as store:
            within = (window.start_ns - 4 * 10**8, window.end_ns + 10**9)
            _ = window.joules
            readings = store.readings(*within)
            ticks = one_by_one(store.ticks(*within))
        assert not socket_path(agent.store).is_file()
    assert window.error_j < 30
    between = [r for r in readings if r.tick_ns % 500_000_000]
    assert any(window.start_ns - 4 * 10**8 < r.t_ns + r.late_ns <= window.start_ns for r in between)
    assert any(window.end_ns - 4 * 10**8 < r.t_ns + r.late_ns <= window.end_ns for r in between)
    assert not any(t.first_ns % 500_000_000 for t in ticks)


def sampling(tree):
    return energymon.Agent(interval_ms=20, options=["--sysfs", str(tree.root), "--nvml", str(tree.root / "none.so")])


@pytest.mark.process
def test_the_figures_are_there_as_soon_as_a_reading_shows_what_was_used_by_the_end(rapl, monkeypatch):
    """The readings that follow an edge at a fraction of the lag may show what is of before it."""
    monkeypatch.setattr(energymon.agent.process, "_COMMIT_S", 60.0)
    with rapl.running(), sampling(rapl) as agent:
        for _ in range(3):
            with energymon.Window(agent=agent) as window:
                time.sleep(0.05)
            before_s = time.monotonic()
            assert window.joules > 0
            assert time.monotonic() - before_s < 30


@pytest.mark.process
def test_the_figures_are_there_as_soon_as_a_counter_that_stood_still_at_the_end_counts_again(rapl, monkeypatch):
    monkeypatch.setattr(energymon.agent.process, "_COMMIT_S", 60.0)
    with rapl.running(), sampling(rapl) as agent:
        with monkeypatch.context() as still:
            with energymon.Window(agent=agent) as window:
                time.sleep(0.05)
                still.setattr(type(rapl.packages[0]), "show", lambda *_: None)
            time.sleep(0.3)
        before_s = time.monotonic()
        assert window.joules > 0
        assert time.monotonic() - before_s < 30


def test_an_answer_says_what_keeps_readings_from_being_stored(tmp_path):
    with served(tmp_path / "e.sqlite") as listener, closing(Asker(tmp_path / "e.sqlite")) as asker:
        for problem in ("", "the disk is full", ""):
            listener.problem = problem
            assert asker.edge_ns() is not None
            assert asker.problem == problem


@pytest.mark.process
@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_window_across_a_restart_of_the_agent_is_as_tight_as_its_two_edges(counting, start_agent, monkeypatch, how):
    """At ticks of four seconds an edge without a reading of its own has a bound of 600 J."""
    options = ("--sysfs", str(counting), "--interval-ms", "4000")
    agent = start_agent(*options)
    monkeypatch.setenv("ENERGYMON_STORE", str(agent.store))
    with energymon.Window(node="n") as window:
        wait_until_stored(agent.store, window.start_ns)
        getattr(agent.process, how)()
        agent.process.wait(timeout=20)
        start_agent(*options, store=agent.store)
    assert window.joules > 0
    assert window.error_j < 250
    assert {event.kind for event in window.energy.events} == {"agent-restart"}


def wait_until_stored(store, t_ns):
    """Wait until a store has readings of a window's first edge, which nobody has asked it to commit."""
    deadline = time.monotonic() + 20
    while True:
        with SqliteStore.open(store) as opened:
            if any(r.t_ns >= t_ns - 10**7 and r.tick_ns % (4 * 10**9) for r in opened.readings(t_ns, t_ns)):
                return
        assert time.monotonic() < deadline, "the reading at the edge is not stored"
        time.sleep(0.02)
