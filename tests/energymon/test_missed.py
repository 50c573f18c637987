"""What is told of missed ticks, and when: by the collector, and by the writer of readings."""

import pytest

from energymon import START, SqliteStore
from energymon.sampling.outages import Missed, Portion
from energymon.sampling.records import Gap, Sampled
from energymon.sampling.writer import StoreWriter
from energymon.sensors.base import SensorChannel, SensorPoint

MS = 1_000_000
S = 1000 * MS
TICK = 100 * MS
T0 = 1_700_000_000 * S
CPU = SensorChannel("package-0", "cpu", "rapl-powercap")


def test_missed_ticks_are_told_at_once_and_then_ever_more_rarely_while_they_go_on():
    missed = Missed()
    told = []
    for tenth in range(1000):
        missed.add(T0 + tenth * TICK, 1, TICK)
        if (portion := missed.portion(tenth * TICK)) is not None:
            told.append((tenth, portion))
    assert [tenth for tenth, _ in told[:6]] == [0, 10, 30, 70, 150, 250]
    assert told[1] == (10, Portion(T0 + TICK, 10, 11)), "the run began with the tick that was told first"
    assert sum(portion.ticks for _, portion in told) + missed.portion(0, last=True).ticks == 1000
    assert missed.portion(10**6 * S) is None
    missed.add(T0, 2, TICK)
    assert missed.portion(10**6 * S) == Portion(T0, 2, 2)
    missed.add(T0 + S, 1, TICK)
    assert missed.portion(10**6 * S + S) == Portion(T0 + S, 1, 1), "after a pause it is told at once again"


class Sensor:
    """A sensor whose samples are the points themselves."""

    def __init__(self, name, wrap_s=None):
        self.name = name
        self.channels = (CPU,)
        self.wrap_s = wrap_s

    def decode(self, raw, offset_ns):
        return [raw]

    def describe(self):
        return {"channels": [{"device": CPU.device, "domain": CPU.domain, "wrap_s": self.wrap_s}]}


@pytest.fixture
def events(tmp_path):
    """Have a writer take records; return what it told, as (seconds since T0, kind, message)."""

    def tell(records, *sensors):
        failures = []
        with SqliteStore.create(tmp_path / "energy.sqlite") as store:
            store.begin_session("n", T0, TICK, {})
            writer = StoreWriter(
                store,
                "n",
                sensors,
                TICK,
                on_stored=lambda count: None,
                on_failure=failures.append,
                on_event=lambda event: None,
            )
            for record in records:
                writer.put(record)
            writer.start()
            writer.stop()
            assert not failures
            return [((e.t_ns - T0) / S, e.kind, e.message) for e in store.events()]

    return tell


def at(second, joules, flags="", index=0, problem=""):
    point = SensorPoint(CPU, T0 + round(second * S), joules, flags, problem)
    return Sampled(T0 + round(second * S), 0, [(index, point)], True, False, 0, 0)


def test_a_gap_is_told_with_the_time_of_its_first_tick_and_that_counters_carry_over_it(events):
    gap = Gap(T0 + TICK, T0 + 9 * TICK, TICK)
    ((when, kind, message),) = events([at(0, 0.0, START), gap, at(1, 20.0)], Sensor("powercap", wrap_s=65.5))
    assert (when, kind) == (0.1, "ticks-missed")
    assert message.startswith("9 ticks ") and "0.900 s" in message


def test_a_gap_in_which_a_counter_may_have_wrapped_is_told_as_one_without_a_figure(events):
    gap = Gap(T0 + TICK, T0 + 700 * TICK, TICK)
    again = at(70.1, 0.0, START, problem="was not read for 70.0 s")
    first, restart = events([at(0, 0.0, START), gap, again], Sensor("powercap", wrap_s=65.5))
    assert first[:2] == (0.1, "ticks-missed")
    told = "a counter may wrap unseen in 70.0 s: windows across them have no figure of package-0 cpu (in 65.5 s)"
    assert first[2].endswith(told)
    assert restart[:2] == (70.1, "counter-restart")
    assert "70.0 s" in restart[2]
    assert "carry" not in first[2] + restart[2]


@pytest.mark.parametrize(
    ("wrap_s", "told"),
    [(None, "was reset: it went from 5 to 3"), (0.082, "may wrap in 82 ms, between two ticks: take --interval-ms 41")],
)
def test_a_counter_that_starts_again_is_told_with_its_reason_which_may_be_that_it_wraps_between_ticks(
    events, wrap_s, told
):
    again = at(0.2, 1.0, START, problem="was reset: it went from 5 to 3")
    ((_, kind, message),) = events([at(0, 0.0, START), at(0.1, 1.0), again], Sensor("powercap", wrap_s))
    assert kind == "counter-restart"
    assert told in message
    assert ("reset" in message) == (wrap_s is None)


def test_a_sensor_that_takes_longer_than_a_tick_is_told_with_how_long_it_takes(events):
    def late(tick):
        return Sampled(T0 + tick * TICK, 0, [(0, SensorPoint(CPU, T0 + tick * TICK, 1.0))], False, True, 0, 250 * MS)

    quiet = [Sampled(T0 + tick * TICK, 0, [], False, False, 0, 0) for tick in range(30)]
    ((when, kind, message),) = events([at(0, 0.0, START), *quiet[1:], late(1), late(4)], Sensor("nvml gpu-0"))
    assert (when, kind) == (0.1, "sensor-slow")
    assert message.startswith("nvml gpu-0: ")
