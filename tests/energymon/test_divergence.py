import pytest

from energymon.sensors.divergence import Divergence, divergence

S = 10**9


@pytest.mark.parametrize(
    ("counter_j", "power_j", "share"),
    [(100, 100, 0), (100, 89, 0.11), (100, 112, 0.12), (0, 0, 0), (0, 1, float("inf"))],
)
def test_the_difference_is_a_share_of_the_counters_joules(counter_j, power_j, share):
    assert divergence(counter_j, power_j) == pytest.approx(share)


def told(watts, *, counter_w=100.0, step_ns=S // 10):
    """Feed power of these watts, a reading a step, beside a counter of `counter_w`."""
    compared, counter, power = Divergence(), 0.0, 0.0
    notes = []
    for i, w in enumerate(watts):
        note = compared.update(i * step_ns, counter, power)
        counter += counter_w * step_ns / S
        power += w * step_ns / S
        if note:
            notes.append((i * step_ns // S, note))
    return notes


def test_series_that_agree_are_not_told():
    assert told([95.0] * 300) == []


def test_a_difference_is_told_once_when_ten_seconds_are_over():
    ((at_s, note),) = told([80.0] * 600)
    assert at_s == 10
    assert all(figure in note for figure in ("20%", "10 s", "1000 J", "800 J"))


def test_a_difference_that_goes_is_told_too():
    notes = told([50.0] * 150 + [100.0] * 300)
    assert [note.split(" over")[0] for _, note in notes] == [
        "counter and power differ by 50%",
        "counter and power agree again, to 10%",
    ]


def test_a_burst_that_one_series_shows_later_evens_out():
    assert told([100.0] * 100 + [300.0, -100.0] * 3 + [100.0] * 200) == []


def test_ticks_rarer_than_the_span_are_compared_too():
    notes = told([10.0] * 8, step_ns=10 * S)
    assert len(notes) == 1


def test_a_restart_forgets_what_was_before():
    compared = Divergence()
    compared.update(0, 0.0, 0.0)
    compared.restart()
    assert compared.update(11 * S, 1000.0, 0.0) == ""
