"""What driver and cell send each other is the same on both sides."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from harness.cell.messages import CellSpec, CellState
from harness.config.experiment import experiment_from


@pytest.fixture
def spec():
    with initialize_config_module("conf", version_base="1.3"):
        experiment = experiment_from(compose("config", overrides=["+experiment=wan30ms"]))
    return CellSpec(
        cell_id="streaming-resnet50-wan_30ms-r1-0",
        out=Path("/results/cells/a.partial"),
        loader=experiment.loaders["streaming"],
        workload=experiment.workloads["resnet50"],
        accelerator=experiment.accelerator,
        samples=Path("/results/samples.parquet"),
        endpoints=("tcp://10.0.0.1:5555",),
        keys=Path("/keys/client"),
        seed=7,
        warmup_samples=32,
        energy_store=Path("/results/energy.sqlite"),
        interface="data0",
        link_pid=12,
    )


def test_a_spec_comes_out_as_it_went_in(spec):
    sent = spec.to_json()
    assert b"\n" not in sent
    received = CellSpec.from_json(sent)
    assert received.loader == spec.loader
    assert (received.workload.target, received.workload.params) == (spec.workload.target, spec.workload.params)
    assert received.to_json() == sent


def test_a_key_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"cell_id"):
        CellSpec.from_json(b'{"seed": 1}')


def test_a_state_without_values_has_their_defaults():
    state = CellState.from_json(b'{"state": "progress", "samples": 64}')
    assert (state.state, state.samples, state.accelerator) == ("progress", 64, None)
