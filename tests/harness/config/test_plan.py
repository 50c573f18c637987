"""The plan: every combination once a repeat, in an order that the seed alone decides."""

from collections import Counter

import pytest

from harness.errors import ConfigError
from harness.run.plan import plan_cells
from tests.harness.configs import experiment


def planned(*overrides, name="wan30ms"):
    return plan_cells(experiment(f"+experiment={name}", *overrides))


def test_every_combination_runs_once_in_every_repeat():
    cells = planned("repeats=4")
    counts = Counter((c.loader, c.workload, c.regime, c.repeat) for c in cells)
    assert len(counts) == 3 * 1 * 2 * 4 + 3 * 4
    assert set(counts.values()) == {1}
    assert [c.repeat for c in cells] == sorted(c.repeat for c in cells)
    assert {c.regime for c in cells if c.loader == "fixed"} == {"lan_0_1ms"}
    assert all(len({c.seed for c in cells if c.repeat == repeat}) == 1 for repeat in (1, 2)), "one seed a repeat"


def test_a_loader_has_its_own_number_of_repeats_spread_over_the_run():
    cells = planned("repeats={streaming:8,dali:3,fixed:1,lan_0_1ms:4,others:2}", name="emlio_fig8")
    turns = {loader: sorted({c.repeat for c in cells if c.loader == loader}) for loader in ("streaming", "dali")}
    assert turns == {"streaming": [*range(1, 9)], "dali": [1, 5, 8]}
    counts = Counter((c.loader, c.regime) for c in cells)
    assert [counts["streaming", regime] for regime in ("lan_1ms", "lan_0_1ms")] == [8, 4]
    assert [counts["streaming_emlio", regime] for regime in ("lan_1ms", "lan_0_1ms")] == [2, 2]
    assert sum(c.loader == "fixed" for c in cells) == 1
    for without in (["repeats={dali:0,others:1}"], ["repeats={dali:3,others:1}", "~loaders.dali"]):
        left = {c.loader for c in planned(*without, name="emlio_fig8")}
        assert left == {"streaming_emlio", "streaming", "fixed"}


@pytest.mark.parametrize(
    ("repeats", "message"),
    [
        ("{streming:3,others:2}", r"repeats\.streming: expected others, or one of dali"),
        ("{streaming:3}", r"repeats\.dali is missing"),
        ("{others:0}", "repeats: no loader has any"),
        ("{others:-1}", "repeats=.*expected a count, or counts by loader"),
    ],
)
def test_repeats_that_do_not_go_with_the_loaders_are_refused(repeats, message):
    with pytest.raises(ConfigError, match=message):
        planned(f"repeats={repeats}", name="emlio_fig8")


def test_of_two_loaders_each_is_the_first_one_as_often():
    cells = planned("repeats=6")
    for regime in ("lan_0_1ms", "wan_30ms"):
        order = [(c.repeat, c.loader) for c in cells if c.regime == regime and c.loader in ("dali", "streaming")]
        assert Counter(loader for place, (_, loader) in enumerate(order) if place % 2 == 0) == {
            "dali": 3,
            "streaming": 3,
        }


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
    beside = ("energy.idle_s=9", "energy.settle.max_s=0", "energy.price_per_kwh=0.3", "energy.gco2_per_kwh=400")
    assert planned(*beside) == plain


def test_a_loader_may_have_ranks_of_its_own_which_its_cells_ids_know():
    made = experiment("+experiment=minato_model_fig9")
    assert [made.count_ranks(key) for key in made.loaders] == [1, 2, 4] * 2
    assert [one.params["num_workers"] for one in made.loaders.values()] == [12, 6, 3, 12, 12, 12]
    found = [
        [
            c.cell_id
            for c in planned("loaders.pytorch.num_workers=2", "loaders.dali.read_threads=2", *of)
            if c.loader == "pytorch"
        ]
        for of in (["distributed.world_size=2"], ["+loaders.pytorch.world_size=2"], [])
    ]
    assert found[0] == found[1] != found[2]
