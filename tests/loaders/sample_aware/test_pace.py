"""Only where samples are quick do several wait for each worker."""

import pytest

from loaders.sample_aware.pace import REST_S, is_for_one, tasks_ahead


@pytest.mark.parametrize("sample_ns", [0, 250_000, 1_000_000, 10_000_000_000])
def test_slow_samples_and_unknown_ones_wait_one_for_each_worker(sample_ns):
    assert tasks_ahead(sample_ns) == 1


@pytest.mark.parametrize("sample_ns", [1, 1000, 50_000, 249_999])
def test_quick_samples_last_a_worker_through_a_rest_and_no_longer_than_a_few(sample_ns):
    assert REST_S * 1e9 <= tasks_ahead(sample_ns) * (sample_ns + 50_000) <= 4 * REST_S * 1e9


@pytest.mark.parametrize(
    ("sample_ns", "batch", "expected"),
    [(0, 32, False), (100_000, 4096, True), (900_000, 32, True), (2_000_000, 32, False), (25_000_000, 1, True)],
)
def test_one_worker_makes_a_batch_where_its_samples_are_quick(sample_ns, batch, expected):
    assert is_for_one(sample_ns, batch) == expected
