"""Windows without an agent: counters whose joules are known, read by this process; decorators and event loops."""

import asyncio
import os
import random
import threading
import time
from dataclasses import asdict
from statistics import median

import pytest

from energymon import EnergyComponent, Meter, NodeEnergy, NoSensorError, OptionError, Window, WindowError, measure
from energymon.agent import cpu_time, direct
from energymon.analysis import attribution
from energymon.analysis.accuracy import Accuracy
from energymon.cli.query import figures
from energymon.sensors.discover import SensorConfig


@pytest.fixture
def meters(boards, nvml_library, tmp_path):
    """Open a meter over boards that count so many watts."""
    opened = []

    def make(count=1, *, sysfs=tmp_path, estimate=False, **state):
        boards(count, **state)
        opened.append(Meter(config=SensorConfig(sysfs=sysfs, nvml=nvml_library, estimate=estimate)))
        return opened[-1]

    yield make
    for meter in opened:
        meter.close()


def outside(window, watts):
    """Whether the joules are further from the true ones than the bound, and a thousandth of a joule, says."""
    return abs(window.joules - watts * window.duration_s) > window.error_j + 1e-3


@pytest.mark.parametrize("period_ms", [1.0, 20.0, 90.0])
def test_no_window_is_outside_its_bound_and_the_bound_is_that_of_an_update(meters, period_ms):
    meter, dice = meters(2, watts={0: 250.0, 1: 80.0}, period_ms={0: period_ms, 1: 3.0}), random.Random(1)
    windows = []
    for _ in range(40):
        with Window(direct=meter) as window:
            time.sleep(dice.uniform(0, 0.02))
        windows.append(window)
        time.sleep(dice.uniform(0, 0.01))
    assert [outside(window, 330.0) for window in windows] == [False] * 40
    assert median(window.error_j for window in windows) < 2 * 330 * 4 * (period_ms + 10) / 1e3
    assert {window.sources["gpu"] for window in windows} == {("nvml-counter",)}


def test_windows_of_threads_that_nest_are_their_own(meters):
    meter = meters(watts={0: 100.0}, period_ms={0: 2.0})
    windows = []

    def work():
        with Window(direct=meter) as whole:
            for _ in range(3):
                with Window(direct=meter) as part:
                    time.sleep(0.005)
                windows.append(part)
        windows.append(whole)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(windows) == 16
    assert not any(outside(window, 100.0) for window in windows)


def test_sockets_are_summed_and_a_counter_that_wraps_in_the_window_is_counted(meters, rapl):
    # Package 0 wraps a quarter of a second after the tree begins to count.
    with rapl.running():
        meter = meters(0, sysfs=rapl.root)
        with Window(direct=meter) as window:
            time.sleep(0.5)
        assert set(window.by_domain) == {"cpu", "dram"}
        watts = sum(zone.watts for zone in (*rapl.packages, *rapl.drams))
        assert abs(window.joules - watts * window.duration_s) <= window.error_j + watts * 0.05


def test_a_counter_that_may_have_wrapped_unseen_has_no_figure_and_says_why(meters, rapl, monkeypatch):
    with rapl.running():
        meter = meters(0, sysfs=rapl.root)
        window = Window(direct=meter)
        with window:
            time.sleep(0.1)
            meter._settling.join()
            for sensor in meter._sensors:
                for series in sensor.series:
                    series.counter.wrap_s = 1e-9
            time.sleep(0.05)
        with pytest.raises(WindowError, match=r"(?s)no figure.*may wrap in"):
            assert window.joules


def test_a_counter_that_is_reset_in_the_window_leaves_it_without_a_figure(meters, boards):
    meter = meters(watts={0: 100.0}, period_ms={0: 2.0})
    with Window(direct=meter) as window:
        time.sleep(0.05)
        boards(1, reset=[0], period_ms={0: 2.0})
        with Window(direct=meter):
            time.sleep(0.05)
    with pytest.raises(WindowError, match="was reset"):
        assert window.joules


def test_a_counter_that_stands_still_has_no_figure_and_one_that_lags_has_the_right_one(meters, boards):
    meter = meters(2, watts={0: 100.0, 1: 50.0}, period_ms={0: 2.0, 1: 300.0})
    with Window(direct=meter) as window:
        time.sleep(0.02)
    assert not outside(window, 150.0)
    boards(2, watts={0: 100.0}, period_ms={0: 2.0}, frozen_ns={0: time.monotonic_ns()})
    with Window(direct=meter) as window:
        time.sleep(0.02)
    with pytest.raises(WindowError, match="gpu-0 gpu nvml-counter stood still"):
        assert window.joules


def test_a_board_that_is_lost_leaves_the_total_unknown_and_the_others_are_read_on(meters, boards):
    meter = meters(2, period_ms={0: 2.0, 1: 2.0})
    with Window(direct=meter) as window:
        boards(2, lost=[1], period_ms={0: 2.0})
        time.sleep(0.02)
    assert [one.device for one in window.energy.best] == ["gpu-0"]
    with pytest.raises(WindowError, match=r"(?s)no figure of gpu-1 gpu.*sensor-lost: gpu-1"):
        assert window.joules
    assert list(meter._due()[1]) == [0, 1]


def test_what_contradicts_and_what_resonates_is_said_of_a_direct_window_too(meters, monkeypatch):
    meter = meters(period_ms={0: 2.0})
    (counter,) = [c for c in meter.description["sensors"][0]["channels"] if c["source"] == "nvml-counter"]
    counter["accuracy"] = asdict(Accuracy(0.05, 0.0, 0.0, "calibrated", 0.0, 0.1))
    monkeypatch.setattr(attribution, "disagreements", lambda *_: ["one has more"])
    with Window(direct=meter, period_s=0.1) as window:
        time.sleep(0.02)
    assert window.energy.disagreements == ("one has more",)
    assert "load-resonates" in {event.kind for event in window.energy.events}
    assert "  disagree: one has more" in figures(window.energy)


def test_a_board_that_shows_power_alone_is_named_and_leaves_the_total_unknown(meters):
    meter = meters(2, power_only=[1], period_ms={0: 2.0})
    with Window(direct=meter) as window:
        time.sleep(0.02)
    assert window.by_domain == {"gpu": None}
    with pytest.raises(WindowError, match=r"gpu-1 gpu.*which an agent must sample"):
        assert window.joules


def test_a_host_on_which_nothing_counts_says_so(meters, tmp_path):
    with pytest.raises(NoSensorError, match="which an agent must sample"):
        meters(1, power_only=[0])
    with pytest.raises(NoSensorError, match=r"(?s)nothing on this host.*powercap"):
        Meter(config=SensorConfig(sysfs=tmp_path, nvml=tmp_path / "none.so"))
    with pytest.raises(OptionError, match="which takes an agent"):
        Meter(config=SensorConfig(sysfs=tmp_path, wall=("ipmi",)))
    with pytest.raises(OptionError, match="expected no store"):
        Window(direct=True, store=tmp_path)


def test_a_window_over_an_estimate_is_labelled(meters):
    meter = meters(0, estimate=True)
    with Window(direct=meter) as window:
        time.sleep(0.05)
    assert window.joules > 0
    assert (window.estimated, window.error_j, window.sources) == (True, None, {"cpu": ("estimate",)})


def test_a_meter_belongs_to_the_process_that_made_it(meters):
    meter = meters(period_ms={0: 2.0})
    window = Window(direct=meter)
    with window:
        time.sleep(0.01)
    pid = os.fork()
    if not pid:
        try:
            with Window(direct=meter):
                pass
        except WindowError as error:
            os._exit(7 if "parent process" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not outside(window, 300.0)
    meter.close()
    with pytest.raises(WindowError, match="was closed"):
        meter.begin()


def test_decorated_functions_and_coroutines_nest_and_return_what_they_did(meters, capsys):
    meter = meters(watts={0: 100.0}, period_ms={0: 2.0})
    seen = []

    @measure(report=seen.append, direct=meter)
    def inner(a, *, b):
        time.sleep(0.01)
        return a + b

    @measure(report=seen.append, direct=meter)
    async def outer():
        """A coroutine."""
        await asyncio.sleep(0.01)
        return inner(1, b=2)

    assert asyncio.run(outer()) == 3
    assert [window.name.rpartition(".")[2] for window in seen] == ["inner", "outer"]
    assert seen[0].joules < seen[1].joules
    assert (outer.__name__, outer.__doc__) == ("outer", "A coroutine.")
    measure(direct=meter)(inner)(1, b=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.split(": ")[1].endswith("(± " + line.partition("(± ")[2])
    assert "J (± " in line
    assert "sensors ± unknown; gpu " in line
    assert len(seen) == 3

    async def many():
        yield 1

    for function in (many, lambda: (yield)):
        with pytest.raises(OptionError, match="is a generator function"):
            measure(function)


def test_an_event_loop_goes_on_while_a_window_begins_and_its_figures_are_waited_for(meters, monkeypatch):
    meter = meters(watts={0: 100.0}, period_ms={0: 300.0})
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    async def work():
        counting = asyncio.create_task(count())
        async with Window(direct=meter) as window:
            await asyncio.sleep(0.3 - (time.monotonic() + 0.2) % 0.3)
        before = turns
        window = await window.settled()
        assert turns - before > 1
        assert window._found is not None
        assert not outside(window, 100.0)
        counting.cancel()

    asyncio.run(work())


def shared_between(monkeypatch, *times):
    shown = iter(times)
    monkeypatch.setattr(cpu_time, "cpu_time", lambda owner: next(shown))
    share = cpu_time.CpuShare("process")
    share.end()
    return share


def test_a_process_has_its_share_of_the_cpus_joules_by_cpu_time(meters, monkeypatch, tmp_path):
    meter = meters(0, estimate=True)
    with Window(direct=meter, attribute="process") as window:
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            pass
    share = window.attributed
    assert 0 < share.joules <= window.joules
    assert share.joules == pytest.approx(window.joules * share.cpu_s / max(share.host_cpu_s, share.cpu_s))
    assert str(share).startswith("attributed by CPU time, not measured: ")
    assert (share.is_net, share.estimated) == (False, True)
    with Window(direct=meter) as other:
        time.sleep(0.01)
    with pytest.raises(OptionError, match="attributes nothing"):
        assert other.attributed
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    assert cpu_time.cpu_time(group).used_s == 1.5
    with pytest.raises(ZeroDivisionError), Window(direct=meter, attribute=group) as window:
        (group / "cpu.stat").unlink()
        assert 1 / 0
    with pytest.raises(WindowError, match=r"unknown: .*expected the folder of a control group"):
        assert window.attributed
    assert window.joules > 0
    with pytest.raises(OptionError, match="expected the folder of a control group"):
        cpu_time.cpu_time(tmp_path)
    with pytest.raises(WindowError, match="4 processors were online, and 5 are"):
        shared_between(monkeypatch, cpu_time.CpuTime(1.0, 1.0, 4), cpu_time.CpuTime(99.0, 2.0, 5)).of(other.energy)


def test_a_process_has_one_meter_however_many_threads_ask_for_it(meters, monkeypatch):
    meter, opened = meters(period_ms={0: 2.0}), []

    def opening():
        time.sleep(0.05)
        opened.append(meter)
        return meter

    monkeypatch.setattr(direct, "Meter", opening)
    monkeypatch.setattr(direct, "_shared", {})
    threads = [threading.Thread(target=direct.shared_meter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [meter]


@pytest.mark.parametrize(
    ("net_j", "used_s", "joules"), [(None, 1.0, 25.0), (40.0, 1.0, 10.0), (40.0, 8.0, 40.0), (-1.0, 1.0, None)]
)
def test_joules_beyond_idle_are_divided_where_a_baseline_is_known(monkeypatch, net_j, used_s, joules):
    cpu = EnergyComponent("cpu", 100.0, 1.0, 1.0, 0.0, 0.0, sources=(), estimated=False, lost=(), net_j=net_j)
    between = shared_between(monkeypatch, cpu_time.CpuTime(10.0, 5.0, 4), cpu_time.CpuTime(14.0, 5.0 + used_s, 4))
    share = between.of(NodeEnergy((), (), (cpu,)))
    assert (share.joules, share.is_net, share.host_cpu_s) == (joules, net_j is not None, 4.0)
    assert ("beyond idle" in str(share)) == (net_j is not None)
