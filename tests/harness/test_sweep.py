"""A sweep stands for one loader a value, in the order that was written."""

import pytest

from harness.config.sweep import variants
from harness.errors import ConfigError


def test_a_loader_without_a_sweep_stands_for_itself():
    (section,) = variants({"pytorch": {"num_workers": 4}}).values()
    assert section == {"_key_": "pytorch", "_base_": "pytorch", "_setting_": {}, "num_workers": 4}


def test_every_value_is_a_loader_that_differs_in_it_alone():
    found = variants({"pytorch": {"num_workers": 4, "prefetch_factor": 2, "sweep": {"num_workers": [8, 1]}}})
    assert list(found) == ["pytorch_num_workers_8", "pytorch_num_workers_1"]
    own = {"_key_": "pytorch_num_workers_1", "_base_": "pytorch", "_setting_": {"num_workers": 1}}
    assert found["pytorch_num_workers_1"] == {**own, "num_workers": 1, "prefetch_factor": 2}


def test_several_keys_stand_for_all_their_combinations():
    found = variants({"p": {"sweep": {"a": [1, 2], "b": [3, 4]}}})
    assert [tuple(section["_setting_"].values()) for section in found.values()] == [(1, 3), (1, 4), (2, 3), (2, 4)]


@pytest.mark.parametrize("sweep", [{}, 3, {"num_workers": 4}, {"num_workers": []}, {"num_workers": [1, 1]}])
def test_a_sweep_without_values_to_try_is_refused_by_its_key(sweep):
    with pytest.raises(ConfigError, match=r"loaders\.pytorch\.sweep"):
        variants({"pytorch": {"sweep": sweep}})


def test_a_sweep_that_makes_a_loader_that_is_there_is_refused():
    with pytest.raises(ConfigError, match="p_a_1"):
        variants({"p_a_1": {}, "p": {"sweep": {"a": [1]}}})
