"""A composed config becomes checked data, or one message that names the key."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import conf
from harness.config.experiment import config_hash, experiment_from
from harness.config.specs import Experiment
from harness.config.sweep import variants
from harness.errors import ConfigError
from harness.run.plan import plan_cells
from tests.harness.configs import composed, experiment

EXPERIMENTS = sorted((Path(conf.__file__).parent / "experiment").glob("*.yaml"))
SIZED = [path.stem for path in EXPERIMENTS if "\nsizes:" in path.read_text()]
TREE = ["dataset.root=/data/real", "dataset.on_error=skip", "dataset.limit=3", "dataset.seed=4"]
SHIPPED = {
    "imagenet_small": "harness.datasets.tree.ImageTree",
    "synthetic_2mb": "harness.datasets.tree.ImageTree",
    "kits19_small": "harness.datasets.kits19.tree.Kits19Tree",
}
OWN = ("+experiment=smoke", "+workload@workloads.two=resnet50", "+dataset@workloads.two.dataset=synthetic_2mb")


@pytest.mark.parametrize("name", [path.stem for path in EXPERIMENTS])
def test_every_shipped_experiment_is_valid_and_made_again_by_the_config_that_its_run_stores(name):
    cfg = composed(f"+experiment={name}")
    made = experiment_from(cfg)
    assert made.name == name
    assert made.loaders
    assert made.description
    written = yaml.load(OmegaConf.to_yaml(cfg, resolve=True), Loader=yaml.CSafeLoader)
    assert Experiment.from_config(written, stored=True) == made


def test_the_paper_s_figures_ask_what_they_ask():
    one, two, half = (experiment(f"+experiment=emlio_fig{n}") for n in (7, 8, 10))
    assert [regime.rtt_ms for regime in one.regimes.values()] == [0.1, 1, 10, 30]
    assert [regime.rtt_ms for regime in two.regimes.values()] == [0.1, 1]
    assert [e.loaders["streaming"].params["streams"] for e in (one, two)] == [1, 2]
    assert [e.loaders["streaming"].daemon["threads"] for e in (one, two)] == [1, 2]
    assert {e.datasets["resnet50"].key for e in (one, two)} == {"synthetic_2mb"}
    assert (one.placement, two.placement, half.placement) == ("remote", "remote", "half")


@pytest.mark.parametrize(
    ("section", "key"),
    [({"gone": {"too": 1}}, "gone"), ({"regimes": {"far": {"rtt_ms": "x"}}}, r"regimes\.far\.rtt_ms")],
)
def test_a_stored_config_of_another_version_is_refused_as_one(section, key):
    with pytest.raises(ConfigError, match=rf"another version .*{key}"):
        Experiment.from_config({"name": "old", **section}, stored=True)


def test_any_part_is_one_override_away():
    made = experiment(
        *("+experiment=wan30ms", "loaders.pytorch.num_workers=8", "regimes.wan_30ms.rtt_ms=80", "~loaders.dali"),
        *("figures=[emlio_fig7]", "accelerator.seconds_per_sample={rnnt: 0.02}"),
    )
    assert made.loaders["pytorch"].params["num_workers"] == 8
    assert made.regimes["wan_30ms"].rtt_ms == 80
    assert "dali" not in made.loaders
    assert made.figures == ("emlio_fig7",)
    assert made.accelerator.seconds_per_sample == {"rnnt": 0.02}
    assert experiment("+experiment=wan30ms", "~figures").figures == ()


def test_a_value_is_set_in_a_copy_of_what_was_composed():
    assert experiment("+experiment=smoke", "seed=7").seed == 7
    assert experiment("+experiment=smoke").seed == 0


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("regimes.wan_30ms.rtt_ms=-1", "regimes.wan_30ms.rtt_ms"),
        ("regimes.wan_30ms.rtt_ms=fast", "regimes.wan_30ms.rtt_ms"),
        ("regimes.wan_30ms.rate_gbit=0", "regimes.wan_30ms.rate_gbit"),
        ("regimes.wan_30ms.loss_pct=100", "regimes.wan_30ms.loss_pct"),
        ("+regimes.wan_30ms.delay=3", "regimes.wan_30ms.delay"),
        ("loaders.pytorch.reads=tape", "loaders.pytorch.reads"),
        ("regimes.wan_30ms.rtt_ms=100000", "regimes.wan_30ms.rtt_ms=100000: expected at most 3000 ms"),
        ("regimes.wan_30ms.jitter_ms=31", "regimes.wan_30ms.jitter_ms=31"),
        ("+regimes.wan_30ms.paths=7", "regimes.wan_30ms.paths=7: expected a list"),
        ("+regimes.wan_30ms.paths=[{},{loss:1}]", "regimes.wan_30ms.paths.1.loss: unknown key"),
        ("+regimes.wan_30ms.paths=[{},{loss_pct:100}]", "regimes.wan_30ms.paths.1.loss_pct=100"),
        ("+regimes.wan_30ms.paths=[{rate_gbit:5}]", "regimes.wan_30ms.paths.0.rate_gbit=5"),
        ("+regimes.wan_30ms.paths=[{},{rtt_ms:20}]", "regimes.wan_30ms.paths.1.rtt_ms=20: expected 30"),
        ("+regimes.wan_30ms.paths=[{rtt_ms:60,jitter_ms:31}]", "regimes.wan_30ms.paths.0.jitter_ms=31"),
        ("+regimes.wan_30ms={paths:[{}],rate_gbit:null}", "regimes.wan_30ms"),
        ("testbed=local", "testbed=local: regimes.lan_0_1ms has a link"),
        ("testbed.cold=cell", "testbed.cold=cell: regimes"),
        ("name=../../evil", "name='../../evil'"),
        ("name=''", "no experiment was chosen"),
        ("repeats=0", "repeats"),
        ("epochs=1.5", "epochs"),
        ("energy.interval_ms=0.5", "energy.interval_ms"),
        ("energy.sensors=5", "energy.sensors"),
        ("dataset.limit=5", "dataset.limit"),
        ("testbed.memory_mb=lots", "testbed.memory_mb"),
        ("loaders=7", "loaders=7"),
        ("figures=5", "figures=5"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(override, key):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        experiment("+experiment=wan30ms", override)


def test_a_regime_with_paths_is_refused_where_netem_is_asked_for():
    regime = "+regime@regimes.far=wan_150ms_unequal"
    assert len(experiment("+experiment=wan30ms", regime).regimes["far"].paths) == 4
    with pytest.raises(ConfigError, match=r"^testbed\.link=netem: regimes\.far has paths"):
        experiment("+experiment=wan30ms", regime, "testbed.link=netem")


def test_a_limit_of_daemons_is_refused_where_they_are_on_other_hosts():
    limit = "loaders.streaming.daemon.memory_mb=500"
    assert experiment("+experiment=wan30ms", limit).loaders["streaming"].daemon["memory_mb"] == 500
    with pytest.raises(ConfigError, match=r"^testbed=ssh: loaders\.streaming\.daemon\.memory_mb"):
        experiment("+experiment=wan30ms", limit, "testbed=ssh", "testbed.inventory=hosts.yml")


@pytest.fixture
def influxdb(monkeypatch):
    """What the environment must hold for store=influxdb."""
    for name in ("URL", "ORG", "BUCKET", "TOKEN"):
        monkeypatch.setenv(f"INFLUXDB_V2_{name}", f"a-{name.lower()}")


def test_a_server_is_taken_from_the_environment_and_its_token_is_not_in_the_config(influxdb):
    cfg = composed("+experiment=smoke", "store=influxdb")
    store = experiment_from(cfg).store
    assert (store.kind, store.url, store.org, store.bucket) == ("influxdb", "a-url", "a-org", "a-bucket")
    assert "a-token" not in str(cfg)
    assert config_hash(cfg) == config_hash(composed("+experiment=smoke")), "where readings go is not measured"


@pytest.mark.parametrize(("lacking", "key"), [("URL", "url"), ("BUCKET", "bucket"), ("TOKEN", "token")])
def test_a_server_that_is_not_wholly_named_is_refused(influxdb, monkeypatch, lacking, key):
    monkeypatch.delenv(f"INFLUXDB_V2_{lacking}")
    with pytest.raises(ConfigError, match=rf"store\.{key}.*INFLUXDB_V2_{lacking}"):
        experiment("+experiment=smoke", "store=influxdb")


def test_a_token_file_that_is_not_there_is_named(influxdb, tmp_path):
    with pytest.raises(ConfigError, match="no-such-file"):
        experiment("+experiment=smoke", "store=influxdb", f"store.token_file={tmp_path}/no-such-file")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), r"\+experiment="),
        (("+experiment=nowhere",), "nowhere.*wan30ms"),
        (("+experiment=smoke", "~loaders.dali", "~loaders.pytorch", "~loaders.streaming"), "loaders"),
        (("+experiment=wan30ms", "scale=huge"), "small, full"),
        (("+experiment=wan30ms", "scale=full"), "wan30ms"),
    ],
)
def test_what_is_not_chosen_or_not_there_is_refused_by_name(overrides, told):
    with pytest.raises(ConfigError, match=told):
        experiment(*overrides)


def test_the_hash_follows_what_is_measured_and_not_where_it_is_stored():
    plain = config_hash(composed("+experiment=smoke"))
    assert plain == config_hash(composed("+experiment=smoke", "results_dir=/elsewhere", "resume=latest"))
    priced = ("energy.idle_s=9", "energy.price_per_kwh=0.3", "energy.gco2_per_kwh=400")
    assert plain == config_hash(composed("+experiment=smoke", *priced))
    assert plain != config_hash(composed("+experiment=smoke", "seed=1"))


@pytest.mark.parametrize(("name", "reader"), SHIPPED.items())
def test_a_dataset_with_a_root_is_read_by_its_adapter_and_without_one_generated(name, reader):
    (found,) = experiment("+experiment=smoke", f"dataset={name}", *TREE).datasets.values()
    assert (found.key, found.target) == ("tree", reader)
    assert found.params == {"name": "tree", "root": "/data/real", "on_error": "skip", "limit": 3, "seed": 4}
    (made,) = experiment("+experiment=smoke", f"dataset={name}").datasets.values()
    assert made.key == name
    assert not {"tree", "root", "on_error", "limit"} & set(made.params)


def own_dataset(**section):
    cfg = composed("+experiment=smoke")
    OmegaConf.set_struct(cfg, False)
    cfg.dataset = section
    (found,) = experiment_from(cfg).datasets.values()
    return found


def test_an_adapter_has_keys_of_its_own_and_a_dataset_without_one_keeps_its_root_to_itself():
    tree = {"_target_": "mine.Tree", "annotations": "val.json"}
    found = own_dataset(_target_="mine.Made", name="m", root="/data", tree=tree)
    assert found.target == "mine.Tree"
    assert (found.params["annotations"], found.params["root"], found.params["seed"]) == ("val.json", "/data", 0)
    found = own_dataset(_target_="mine.Made", name="m", root="/data", limit=3)
    assert (found.key, found.target, found.params) == ("m", "mine.Made", {"name": "m", "root": "/data", "limit": 3})
    with pytest.raises(ConfigError, match=r"^dataset\.tree='mine\.Tree': .*_target_"):
        own_dataset(_target_="mine.Made", name="m", root="/data", tree="mine.Tree")


def test_a_workload_is_trained_on_its_own_dataset_and_the_others_on_the_experiment_s():
    made = experiment(*OWN)
    assert made.datasets["resnet50"].key == "imagenet_small"
    assert made.datasets["two"].key == "synthetic_2mb"
    assert "dataset" not in made.workloads["two"].params
    assert made.dataset_key("two") == "workloads.two.dataset"
    assert made.dataset_key("resnet50") == "dataset"
    before, after = (
        {cell.workload: cell.cell_id for cell in plan_cells(experiment(*OWN, *more))}
        for more in ((), ("workloads.two.dataset.samples=9",))
    )
    assert before["resnet50"] == after["resnet50"]
    assert before["two"] != after["two"]


@pytest.mark.parametrize("name", SIZED)
def test_every_size_is_a_valid_experiment_and_full_is_another_one(name):
    small, full = (composed(f"+experiment={name}", f"scale={scale}") for scale in ("small", "full"))
    assert experiment_from(small).datasets
    assert experiment_from(full).datasets
    assert config_hash(small) != config_hash(full)


def test_sizes_count_where_they_are_used():
    assert {"spdl_fig5", "spdl_table2"} <= set(SIZED)
    for scale in ("small", "full"):
        made = experiment("+experiment=spdl_fig5", f"scale={scale}", "dataset.samples=77")
        assert made.datasets["resnet50"].params["samples"] == 77
    cfg = composed("+experiment=spdl_fig5")
    before = config_hash(cfg)
    OmegaConf.update(cfg, "sizes.full.samples", 5, force_add=True)
    assert config_hash(cfg) == before


def test_a_loader_without_a_sweep_stands_for_itself():
    (section,) = variants({"pytorch": {"num_workers": 4}}).values()
    assert section == {"_key_": "pytorch", "_base_": "pytorch", "_setting_": {}, "num_workers": 4}


def test_every_value_of_a_sweep_is_a_loader_that_differs_in_it_alone():
    found = variants({"pytorch": {"num_workers": 4, "prefetch_factor": 2, "sweep": {"num_workers": [8, 1]}}})
    assert list(found) == ["pytorch_num_workers_8", "pytorch_num_workers_1"]
    own = {"_key_": "pytorch_num_workers_1", "_base_": "pytorch", "_setting_": {"num_workers": 1}}
    assert found["pytorch_num_workers_1"] == {**own, "num_workers": 1, "prefetch_factor": 2}
    found = variants({"p": {"sweep": {"a": [1, 2], "b": [3, 4]}}})
    assert [tuple(section["_setting_"].values()) for section in found.values()] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    made = experiment("+experiment=spdl_fig5", "loaders.pytorch.sweep.num_workers=[3]")
    assert made.loaders["pytorch_num_workers_3"].params["num_workers"] == 3
    assert "pytorch" not in made.loaders


def test_a_sweep_by_entries_changes_other_arguments_with_the_one_that_is_swept():
    found = variants(
        {"p": {"a": 0, "sweep": [{"world_size": 1, "num_workers": 4}, {"world_size": 2, "num_workers": 2}]}}
    )
    own = {"_key_": "p_world_size_2", "_base_": "p", "_setting_": {"world_size": 2}}
    assert found["p_world_size_2"] == {**own, "a": 0, "world_size": 2, "num_workers": 2}
    assert found["p_world_size_1"]["num_workers"] == 4


@pytest.mark.parametrize(
    "sweep", [{}, 3, [], [{}], [1], {"num_workers": 4}, {"num_workers": []}, {"num_workers": [1, 1]}, {"a": [1]}]
)
def test_a_sweep_that_makes_no_new_loaders_is_refused_by_its_key(sweep):
    with pytest.raises(ConfigError, match=r"loaders\.pytorch\.sweep"):
        variants({"pytorch_a_1": {}, "pytorch": {"sweep": sweep}})
