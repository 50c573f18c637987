import pytest

from harness.report.papers import find_table, low
from harness.workloads.overlap import simulate, workers_to_hide

OUTPUT = "textbook/output_8_5_1"


def is_hidden(epoch, load_s):
    """Whether no step but the first one waited (Code 8.5.1: `ideal_wall * 1.001`)."""
    return epoch.wall_s <= (load_s + epoch.busy_s) * 1.001


@pytest.mark.parametrize("workers", [int(key) for key in find_table(f"{OUTPUT}/wall_ms")])
def test_the_model_prints_the_textbook_s_output_8_5_1_to_its_last_digit(workers):
    epoch = simulate(28.0, 10.0, workers=workers, steps=200)
    assert round(epoch.wall_s) == low(f"{OUTPUT}/wall_ms/{workers}")
    assert round(epoch.utilisation, 3) == low(f"{OUTPUT}/utilisation/{workers}")
    assert is_hidden(epoch, 28.0) == (workers >= 3)


def test_workers_beyond_two_slots_gain_nothing():
    two = simulate(28.0, 10.0, workers=2, steps=200)
    capped = {simulate(28.0, 10.0, workers=workers, steps=200, cap=2).wall_s for workers in (2, 3, 4, 6, 8)}
    assert capped == {two.wall_s}
    assert simulate(28.0, 10.0, workers=1, steps=200, cap=2).wall_s > two.wall_s


@pytest.mark.parametrize(("load", "expected"), [(3, 1), (10, 1), (10.5, 2), (28, 3), (30, 3), (71, 8)])
def test_the_knee_tracks_load_over_compute_rounded_up_until_a_cap_binds(load, expected):
    assert workers_to_hide(load, 10) == expected
    assert is_hidden(simulate(load, 10, workers=expected, steps=200), load)
    assert expected == 1 or not is_hidden(simulate(load, 10, workers=expected - 1, steps=200), load)
    assert is_hidden(simulate(load, 10, workers=expected, steps=200, cap=2), load) == (expected <= 2)


def test_hidden_loading_leaves_no_wait_but_the_first_one():
    epoch = simulate(28.0, 10.0, workers=4, steps=200)
    assert epoch.first_ready_s == 28.0
    assert epoch.steady_utilisation == pytest.approx(1.0)
    assert simulate(5.0, 10.0, workers=1, steps=1).steady_utilisation == 1.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"workers": 0}, "workers=0"),
        ({"steps": 0}, "steps=0"),
        ({"cap": 0}, "cap=0"),
        ({"compute_s": 0.0}, "compute_s"),
    ],
)
def test_what_cannot_be_simulated_is_named(options, named):
    with pytest.raises(ValueError, match=named):
        simulate(**{"load_s": 28.0, "compute_s": 10.0, "workers": 1, "steps": 1, **options})
