"""Sources of the same joules are compared in each window: honest ones never disagree, false ones are named."""

import random

import pytest

from energymon import Reading, channels_of, energy_of
from energymon.analysis.attribution import of_boards
from tests.energymon.test_query import channel

MS = 1_000_000
S = 1000 * MS
T0 = 1_700_000_000 * S
TICK = 100 * MS
GPU = [channel("gpu-0", "gpu", source) for source in ("nvml-counter", "nvml-power", "nvml-power-average")]


class Load:
    """A power that steps between levels at random, or that is given, and its exact integral."""

    def __init__(self, rng: random.Random, seconds: float, watts: list[float] | None = None) -> None:
        self.steps, at_s = [], -5.0
        while at_s < seconds + 5:
            self.steps.append((at_s, rng.choice(watts or [60.0, 120.0, 350.0, 700.0])))
            at_s += rng.choice([0.01, 0.05, 0.3, 1.0, 4.0]) * rng.uniform(0.5, 1.5)
        self.end_s = at_s

    def watts(self, at_s: float) -> float:
        return next(watts for begin_s, watts in reversed(self.steps) if begin_s <= at_s)

    def joules(self, at_s: float) -> float:
        ends = [begin_s for begin_s, _ in self.steps[1:]] + [self.end_s]
        spans = zip(self.steps, ends, strict=True)
        return sum(watts * (min(at_s, end_s) - begin_s) for (begin_s, watts), end_s in spans if begin_s < at_s)


def board(load: Load, seconds: float, times: float = 1.0, sources=("nvml-counter", "nvml-power-average")):
    """Readings of a board: a counter of 100 ms that shows `times` the joules, and its powers integrated."""
    total_j = dict.fromkeys(sources, 0.0)
    before: dict[str, float] = {}
    rows = []
    for k in range(round(seconds / 0.1) + 1):
        at_s = k * 0.1
        t_ns = T0 + round(at_s * S)
        for source in sources:
            if source == "nvml-counter":
                total_j[source] = times * load.joules(at_s - 0.03)
                rows.append(Reading(t_ns, t_ns, "n", "gpu-0", "gpu", source, total_j[source], "", 130 * MS, 0))
                continue
            watts = load.watts(at_s - 0.02)
            if source == "nvml-power-average":
                watts = load.joules(at_s) - load.joules(at_s - 1.0)
            total_j[source] += (before.get(source, watts) + watts) / 2 * 0.1
            before[source] = watts
            rows.append(Reading(t_ns, t_ns, "n", "gpu-0", "gpu", source, total_j[source]))
    return rows


def disagreements(rows, channels, start_s: float, end_s: float):
    described = {"sensors": [{"channels": channels}]}
    found = energy_of(rows, channels_of(described, "n"), T0 + round(start_s * S), T0 + round(end_s * S), TICK)
    return found.disagreements


def series(device, domain, source, watts, seconds=20.0, error=True):
    """Readings of a source that shows so many watts at every tick."""
    early = {"early_ns": 1 * MS} if error else {}
    ticks = range(round(seconds / 0.1) + 1)
    return [
        Reading(T0 + k * TICK, T0 + k * TICK, "n", device, domain, source, watts * k * 0.1, "", **early) for k in ticks
    ]


@pytest.mark.parametrize("sources", [("nvml-counter", "nvml-power-average"), ("nvml-counter", "nvml-power")])
def test_honest_sources_of_a_board_never_disagree(sources):
    rng = random.Random(7)
    for _ in range(12):
        load = Load(rng, 20)
        rows = board(load, 20, sources=sources)
        for _ in range(40):
            start_s = rng.uniform(0.2, 17)
            end_s = min(start_s + rng.choice([0.3, 1, 2, 5, 12]), 19.5)
            assert disagreements(rows, GPU, start_s, end_s) == ()


@pytest.mark.parametrize("times", [1.74, 1 / 1.74])
@pytest.mark.parametrize("power", ["nvml-power-average", "nvml-power"])
def test_a_counter_that_shows_other_joules_than_the_power_is_named(times, power):
    rows = board(Load(random.Random(3), 20, [300.0]), 20, times, ("nvml-counter", power))
    for start_s, end_s in ((1.0, 7.0), (4.3, 19.0), (2.0, 18.0)):
        (text,) = disagreements(rows, GPU, start_s, end_s)
        assert "nvml-counter" in text and power in text and "1.74 times as much" in text, text
        assert f"{300 * (end_s - start_s):.1f} J" in text, text


def test_a_short_window_says_nothing():
    rows = board(Load(random.Random(3), 20, [300.0]), 20, 1.74, ("nvml-counter", "nvml-power-average"))
    assert disagreements(rows, GPU, 3.0, 3.5) == ()


def test_two_counters_of_one_register_are_compared():
    cpu = [channel("package-0", "cpu", source) for source in ("rapl-perf", "rapl-powercap")]
    one = series("package-0", "cpu", "rapl-perf", 100)
    assert disagreements(one + series("package-0", "cpu", "rapl-powercap", 101), cpu, 1, 9) == ()
    (text,) = disagreements(one + series("package-0", "cpu", "rapl-powercap", 130), cpu, 1, 9)
    assert text.startswith("rapl-powercap of package-0 cpu has 1040.0 J and rapl-perf of package-0 cpu 800.0 J, 1.30")


def module(module_w, gpu_w, cpu_w=None, dram_w=None):
    channels = [channel("gpu-0", "module", "nvml-counter"), channel("gpu-0", "gpu", "nvml-power-average")]
    rows = series("gpu-0", "module", "nvml-counter", module_w)
    rows += series("gpu-0", "gpu", "nvml-power-average", gpu_w, error=False)
    for domain, watts in (("cpu", cpu_w), ("dram", dram_w)):
        if watts is not None:
            channels.append(channel("package-0", domain, "rapl-perf"))
            rows += series("package-0", domain, "rapl-perf", watts)
    return rows, channels


def test_parts_that_exceed_their_module_disagree_and_it_may_hold_more_than_is_measured():
    for parts in ((600, 400), (600, 400, 150), (600, 400, 150, 45)):
        assert disagreements(*module(*parts), 2, 18) == ()
    (text,) = disagreements(*module(600, 500, 250), 2, 18)
    assert text.startswith("package-0 cpu + gpu-0 gpu has 12000.0 J and the module 9600.0 J, 1.25 times as much"), text
    (text,) = disagreements(*module(600, 200, 100, 50), 2, 18)
    assert "the module has 9600.0 J" in text, "all of its parts are measured, and they are not all of it"


def test_a_module_is_not_added_to_its_parts():
    rows, channels = module(600, 400, 150, 45)
    found = energy_of(rows, channels_of({"sensors": [{"channels": channels}]}, "n"), T0 + 2 * S, T0 + 4 * S, TICK)
    joules = {c.name: c.joules for c in found.components}
    assert joules == pytest.approx({"cpu": 300, "dram": 90, "gpu": 800, "module": 1200, "total": 1200})
    board = series("gpu-1", "gpu", "nvml-counter", 100)
    channels = [*channels, channel("gpu-1", "gpu", "nvml-counter")]
    described = {"sensors": [{"channels": channels}]}
    found = energy_of([*rows, *board], channels_of(described, "n"), T0 + 2 * S, T0 + 4 * S, TICK)
    assert found.total.joules == pytest.approx(1400), "a board beside the module is no part of it"
    found = energy_of(rows, channels_of(described, "n"), T0 + 2 * S, T0 + 4 * S, TICK)
    assert (found.total.joules, found.total.lost) == (None, ("gpu-1 gpu",))
    whole = [row for row in rows if (row.device, row.domain) != ("gpu-0", "gpu")]
    found = energy_of(whole, channels_of({"sensors": [{"channels": channels[:-1]}]}, "n"), T0 + 2 * S, T0 + 4 * S, TICK)
    assert found.total.joules == pytest.approx(1200), "the module has a figure where its GPU alone has none"


def test_a_hidden_module_and_what_is_said_of_it_are_left_out():
    rows = [row for i, watts in enumerate((600, 400)) for row in series(f"gpu-{i}", "module", "nvml-counter", watts)]
    rows += series("gpu-1", "gpu", "nvml-power-average", 700, error=False)
    rows += series("package-0", "cpu", "rapl-perf", 700)
    named = [("gpu-0", "module"), ("gpu-1", "module"), ("gpu-1", "gpu"), ("package-0", "cpu")]
    described = channels_of({"sensors": [{"channels": [channel(*part, "nvml-counter") for part in named]}]}, "n")
    found = energy_of(rows, described, T0 + 2 * S, T0 + 18 * S, TICK)
    assert (found.total.joules, len(found.disagreements)) == (pytest.approx(16000), 1)
    seen = of_boards(found, described, {"gpu-0"})
    assert {c.name: c.joules for c in seen.components} == pytest.approx({"cpu": 11200, "module": 9600, "total": 9600})
    assert seen.disagreements == ()
    assert of_boards(found, described, ()).total.joules == pytest.approx(11200)


def wall(watts, cpu_w):
    channels = [channel("plug", "wall", "shelly-energy"), channel("package-0", "cpu", "rapl-perf")]
    return series("plug", "wall", "shelly-energy", watts) + series("package-0", "cpu", "rapl-perf", cpu_w), channels


def test_the_wall_holds_more_than_the_parts_and_never_less():
    assert disagreements(*wall(400, 100), 2, 18) == ()
    assert disagreements(*wall(100, 105), 2, 18) == ()
    (text,) = disagreements(*wall(100, 130), 2, 18)
    assert text.startswith("package-0 cpu has 2080.0 J and the wall 1600.0 J, 1.30 times as much")


def test_the_wall_is_a_component_of_its_own_and_no_part_of_the_total():
    rows, channels = wall(400, 100)
    described = channels_of({"sensors": [{"channels": channels}]}, "n")
    found = energy_of(rows, described, T0 + 2 * S, T0 + 4 * S, TICK)
    assert {c.name: c.joules for c in found.components} == pytest.approx({"cpu": 200, "wall": 800, "total": 200})
    only = [row for row in rows if row.domain == "wall"]
    described = channels_of({"sensors": [{"channels": channels[:1]}]}, "n")
    found = energy_of(only, described, T0 + 2 * S, T0 + 4 * S, TICK)
    assert found.joules("wall") == pytest.approx(800)
    assert (found.total.joules, found.total.lost) == (None, ("any part of the machine",))
