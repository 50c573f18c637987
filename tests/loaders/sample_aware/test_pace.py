"""Only where samples are quick do several wait for each worker, and only then does the coordinator rest."""

import pytest

from loaders.sample_aware.policy.pace import REST_S, is_for_one, rest_s, tasks_ahead


@pytest.mark.parametrize("sample_ns", [0, 10_000_000, 10_000_000_000])
def test_slow_samples_and_unknown_ones_wait_one_for_each_worker(sample_ns):
    assert tasks_ahead(sample_ns) == 1


@pytest.mark.parametrize("sample_ns", [1, 1000, 50_000, 249_999, 3_000_000])
def test_quick_samples_last_a_worker_through_a_rest_and_no_longer_than_a_few(sample_ns):
    assert REST_S * 1e9 <= tasks_ahead(sample_ns) * (sample_ns + 50_000) <= 4 * REST_S * 1e9


@pytest.mark.parametrize("sample_ns", [1000, 250_000, 3_000_000])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 40, 500])
def test_a_rest_is_over_before_a_worker_is_idle(sample_ns, tasks):
    assert 0 <= rest_s(sample_ns, tasks, 2) <= max(0, (tasks - 2) * sample_ns * 1e-9 / 2)


@pytest.mark.parametrize(
    ("sample_ns", "batch", "expected"),
    [
        (0, 32, False),
        (100_000, 4096, True),
        (900_000, 32, True),
        (2_000_000, 32, True),
        (4_000_000, 32, False),
        (6_000_000, 8, False),
        (25_000_000, 1, True),
    ],
)
def test_one_worker_makes_a_batch_where_its_samples_are_quick(sample_ns, batch, expected):
    assert is_for_one(sample_ns, batch) == expected


@pytest.mark.parametrize(("sample_ns", "expected"), [(100_000, True), (900_000, False)])
def test_the_last_batches_are_shared_unless_they_are_short(sample_ns, expected):
    assert is_for_one(sample_ns, 32, last=True) == expected and is_for_one(sample_ns, 32)


@pytest.mark.parametrize("sample_ns", [0, 60_000_000])
def test_of_slow_samples_and_unknown_ones_every_report_is_heard_at_once(sample_ns):
    assert rest_s(sample_ns, 100, 2) == 0
