"""The plan: every combination once a repeat, in an order that the seed alone decides."""

from collections import Counter

import pytest

from harness.errors import ConfigError
from harness.run.plan import plan_cells
from tests.harness.configs import experiment


def planned(*overrides):
    return plan_cells(experiment("+experiment=wan30ms", *overrides))


def test_every_combination_runs_once_in_every_repeat():
    cells = planned("repeats=4")
    counts = Counter((c.loader, c.workload, c.regime, c.repeat) for c in cells)
    assert len(counts) == 3 * 1 * 2 * 4 + 4
    assert set(counts.values()) == {1}
    assert [c.repeat for c in cells] == sorted(c.repeat for c in cells)
    assert {c.regime for c in cells if c.loader == "fixed"} == {"lan_0_1ms"}
    assert all(len({c.seed for c in cells if c.repeat == repeat}) == 1 for repeat in (1, 2)), "one seed a repeat"


def test_a_loader_runs_in_its_regimes_alone_and_in_no_unknown_one():
    cells = planned("+loaders.dali.regimes=[wan_30ms]", "+loaders.fixed.regimes=[wan_30ms]")
    assert {c.regime for c in cells if c.loader in ("dali", "fixed")} == {"wan_30ms"}
    assert {c.regime for c in cells if c.loader == "pytorch"} == {"lan_0_1ms", "wan_30ms"}
    with pytest.raises(ConfigError, match=r"loaders\.dali\.regimes: 'moon': expected some of lan_0_1ms, wan_30ms"):
        planned("+loaders.dali.regimes=[moon]")


def test_the_same_seed_gives_the_same_order_and_another_seed_or_repeat_another():
    assert planned("repeats=4") == planned("repeats=4")
    assert len({tuple(c.loader for c in planned("repeats=4", f"seed={seed}")) for seed in range(5)}) > 1
    cells = planned("repeats=6")
    assert len({tuple(c.loader for c in cells if c.repeat == repeat) for repeat in range(1, 7)}) > 1


def test_a_cells_id_changes_with_its_own_config_only():
    before = {(c.loader, c.regime, c.repeat): c.cell_id for c in planned()}
    after = {(c.loader, c.regime, c.repeat): c.cell_id for c in planned("loaders.pytorch.num_workers=1")}
    changed = {key for key in before if before[key] != after[key]}
    assert {loader for loader, _, _ in changed} == {"pytorch"}
    assert len({*before.values()}) == len(before)


def test_a_cell_s_id_follows_where_the_data_lies_and_the_paths_of_its_regime_and_not_the_price_of_energy():
    plain = planned()
    ids = [planned(f"placement={kind}")[0].cell_id for kind in ("remote", "half", "local")]
    assert len(set(ids)) == 3
    assert ids[0] == plain[0].cell_id
    assert planned("+regimes.wan_30ms.paths=[]") == plain != planned("+regimes.wan_30ms.paths=[{},{rate_gbit:0.1}]")
    assert planned("energy.idle_s=9", "energy.price_per_kwh=0.3", "energy.gco2_per_kwh=400") == plain


def test_a_loader_may_have_ranks_of_its_own_which_its_cells_ids_know():
    made = experiment("+experiment=minato_model_fig9")
    assert [made.count_ranks(key) for key in made.loaders] == [1, 2, 4] * 2
    assert [one.params["num_workers"] for one in made.loaders.values()] == [12, 6, 3, 12, 12, 12]
    ids = [c.cell_id for c in planned("distributed.world_size=2") if c.loader == "pytorch"]
    assert ids == [c.cell_id for c in planned("+loaders.pytorch.world_size=2") if c.loader == "pytorch"]
    assert ids != [c.cell_id for c in planned() if c.loader == "pytorch"]
