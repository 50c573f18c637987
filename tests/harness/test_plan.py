"""The plan: every combination once a repeat, in an order that the seed alone decides."""

from collections import Counter

import pytest
from hydra import compose, initialize_config_module

from harness.config.experiment import config_hash, experiment_from
from harness.errors import ConfigError
from harness.run.plan import plan_cells


def experiment(*overrides):
    with initialize_config_module("conf", version_base="1.3"):
        return experiment_from(compose("config", overrides=["+experiment=wan30ms", *overrides]))


def test_every_combination_runs_once_in_every_repeat():
    cells = plan_cells(experiment("repeats=4"))
    counts = Counter((c.loader, c.workload, c.regime, c.repeat) for c in cells)
    assert len(counts) == 3 * 1 * 2 * 4 + 4
    assert set(counts.values()) == {1}
    assert [c.repeat for c in cells] == sorted(c.repeat for c in cells)
    assert {c.regime for c in cells if c.loader == "fixed"} == {"lan_0_1ms"}


def test_a_loader_runs_in_its_regimes_alone_and_in_no_unknown_one():
    cells = plan_cells(experiment("+loaders.dali.regimes=[wan_30ms]", "+loaders.fixed.regimes=[wan_30ms]"))
    assert {c.regime for c in cells if c.loader in ("dali", "fixed")} == {"wan_30ms"}
    assert {c.regime for c in cells if c.loader == "pytorch"} == {"lan_0_1ms", "wan_30ms"}
    with pytest.raises(ConfigError, match=r"loaders\.dali\.regimes: 'moon': expected some of lan_0_1ms, wan_30ms"):
        experiment("+loaders.dali.regimes=[moon]")


def test_the_same_seed_gives_the_same_order_and_another_seed_another():
    assert plan_cells(experiment("repeats=4")) == plan_cells(experiment("repeats=4"))
    orders = {tuple(c.loader for c in plan_cells(experiment("repeats=4", f"seed={s}"))) for s in range(5)}
    assert len(orders) > 1


def test_loader_order_differs_between_blocks():
    cells = plan_cells(experiment("repeats=6"))
    blocks = {tuple(c.loader for c in cells if c.repeat == r) for r in range(1, 7)}
    assert len(blocks) > 1


def test_all_loaders_of_a_repeat_share_a_seed():
    for repeat in (1, 2):
        assert len({c.seed for c in plan_cells(experiment()) if c.repeat == repeat}) == 1


def test_a_cells_id_changes_with_its_own_config_only():
    before = {(c.loader, c.regime, c.repeat): c.cell_id for c in plan_cells(experiment())}
    after = {(c.loader, c.regime, c.repeat): c.cell_id for c in plan_cells(experiment("loaders.pytorch.num_workers=1"))}
    changed = {key for key in before if before[key] != after[key]}
    assert {loader for loader, _, _ in changed} == {"pytorch"}
    assert len({*before.values()}) == len(before)


def test_a_cell_s_id_follows_where_the_data_lies():
    ids = [plan_cells(experiment(f"placement={kind}"))[0].cell_id for kind in ("remote", "half", "local")]
    assert len(set(ids)) == 3
    assert ids[0] == plan_cells(experiment())[0].cell_id


def test_only_paths_that_a_regime_has_are_part_of_a_cells_id():
    ids = [
        next(cell.cell_id for cell in plan_cells(experiment(*override)) if cell.regime == "wan_30ms")
        for override in ((), ["+regimes.wan_30ms.paths=[]"], ["+regimes.wan_30ms.paths=[{},{rate_gbit:0.1}]"])
    ]
    assert ids[0] == ids[1] != ids[2]


def test_what_joules_are_compared_with_changes_no_cell_and_no_hash():
    priced = ("energy.idle_s=9", "energy.price_per_kwh=0.3", "energy.gco2_per_kwh=400")
    assert plan_cells(experiment(*priced)) == plan_cells(experiment())
    with initialize_config_module("conf", version_base="1.3"):
        hashes = {config_hash(compose("config", ["+experiment=wan30ms", *more])) for more in ((), priced)}
    assert len(hashes) == 1
