"""Only where samples are quick do several wait for each worker."""

import pytest

from loaders.sample_aware.pace import REST_S, tasks_ahead


@pytest.mark.parametrize("sample_ns", [0, 250_000, 1_000_000, 10_000_000_000])
def test_slow_samples_and_unknown_ones_wait_one_for_each_worker(sample_ns):
    assert tasks_ahead(sample_ns) == 1


@pytest.mark.parametrize("sample_ns", [1, 1000, 50_000, 249_999])
def test_quick_samples_last_a_worker_through_a_rest_and_no_longer_than_a_few(sample_ns):
    assert REST_S * 1e9 <= tasks_ahead(sample_ns) * (sample_ns + 50_000) <= 4 * REST_S * 1e9
