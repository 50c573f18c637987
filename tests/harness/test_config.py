"""A composed config becomes checked data, or one message that names the key."""

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

import conf
from harness.config.experiment import config_hash, experiment_from
from harness.config.specs import Experiment
from harness.errors import ConfigError

EXPERIMENTS = Path(conf.__file__).parent / "experiment"


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", overrides=list(overrides))


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))
def test_every_shipped_experiment_is_valid_and_made_again_by_the_config_that_its_run_stores(name):
    cfg = composed(f"+experiment={name}")
    experiment = experiment_from(cfg)
    assert experiment.name == name
    assert experiment.loaders
    assert experiment.description
    written = yaml.safe_load(OmegaConf.to_yaml(cfg, resolve=True))
    assert Experiment.from_config(written, stored=True) == experiment


def test_the_paper_s_figures_ask_what_they_ask():
    one, two, half = (experiment_from(composed(f"+experiment=emlio_fig{n}")) for n in (7, 8, 10))
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
    cfg = composed(
        "+experiment=wan30ms", "loaders.pytorch.num_workers=8", "regimes.wan_30ms.rtt_ms=80", "~loaders.dali"
    )
    experiment = experiment_from(cfg)
    assert experiment.loaders["pytorch"].params["num_workers"] == 8
    assert experiment.regimes["wan_30ms"].rtt_ms == 80
    assert "dali" not in experiment.loaders


def test_a_dataset_root_takes_the_place_of_the_generated_data():
    experiment = experiment_from(composed("+experiment=smoke", "dataset.root=/data/tree", "dataset.on_error=skip"))
    assert experiment.datasets["resnet50"].target == "harness.datasets.tree.ImageTree"
    assert experiment.datasets["resnet50"].params["root"] == "/data/tree"
    assert experiment.datasets["resnet50"].params["on_error"] == "skip"


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
        (
            "+regimes.wan_30ms.paths=[{rate_gbit:5}]",
            "regimes.wan_30ms.paths.0.rate_gbit=5: expected at most rate_gbit=1",
        ),
        ("+regimes.wan_30ms.paths=[{},{rtt_ms:20}]", "regimes.wan_30ms.paths.1.rtt_ms=20: expected 30"),
        (
            "+regimes.wan_30ms.paths=[{rtt_ms:60,jitter_ms:31}]",
            "regimes.wan_30ms.paths.0.jitter_ms=31: expected at most",
        ),
        ("+regimes.wan_30ms={paths:[{}],rate_gbit:null}", "regimes.wan_30ms"),
        ("testbed=local", "testbed=local: regimes.lan_0_1ms has a link"),
        ("name=../../evil", "name='../../evil'"),
        ("name=''", "no experiment was chosen"),
        ("repeats=0", "repeats"),
        ("epochs=1.5", "epochs"),
        ("accelerator.kind=tpu", "accelerator.kind"),
        ("accelerator.time_scale=0", "accelerator.time_scale"),
        ("+accelerator.speed=3", "accelerator.speed"),
        ("energy.interval_ms=0.5", "energy.interval_ms"),
        ("energy.estimate=always", "energy.estimate"),
        ("energy.sensors=5", "energy.sensors"),
        ("energy.cpu_idle_fraction=abc", "energy.cpu_idle_fraction"),
        ("dataset.limit=5", "dataset.limit"),
        ("dataset.on_error=ignore", "dataset.on_error"),
        ("testbed.kind=moon", "testbed.kind"),
        ("checks.rtt_pct=-5", "checks.rtt_pct"),
        ("store.kind=tape", "store.kind"),
        ("placement=moon", "placement"),
        ("+loaders.dali.secure=maybe", "loaders.dali.secure"),
        ("testbed.caches=some", "testbed.caches"),
        ("testbed.cold=batch", "testbed.cold"),
        ("testbed.cold=cell", "testbed.cold=cell: regimes"),
        ("testbed.memory_mb=0", "testbed.memory_mb"),
        ("testbed.memory_mb=lots", "testbed.memory_mb"),
        ("loaders=7", "loaders=7"),
        ("workloads=7", "workloads=7"),
        ("regimes=7", "regimes=7"),
        ("figures=5", "figures=5"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(override, key):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        experiment_from(composed("+experiment=wan30ms", override))


def test_a_regime_with_paths_is_refused_where_netem_is_asked_for():
    regime = "+regime@regimes.far=wan_150ms_unequal"
    assert len(experiment_from(composed("+experiment=wan30ms", regime)).regimes["far"].paths) == 4
    with pytest.raises(ConfigError, match=r"^testbed\.link=netem: regimes\.far has paths"):
        experiment_from(composed("+experiment=wan30ms", regime, "testbed.link=netem"))


def test_a_limit_of_daemons_is_refused_where_they_are_on_other_hosts():
    limit = "loaders.streaming.daemon.memory_mb=500"
    assert experiment_from(composed("+experiment=wan30ms", limit)).loaders["streaming"].daemon["memory_mb"] == 500
    with pytest.raises(ConfigError, match=r"^testbed=ssh: loaders\.streaming\.daemon\.memory_mb"):
        experiment_from(composed("+experiment=wan30ms", limit, "testbed=ssh", "testbed.inventory=hosts.yml"))


def test_the_figures_of_an_experiment_are_one_override_away():
    assert experiment_from(composed("+experiment=wan30ms", "figures=[emlio_fig7]")).figures == ("emlio_fig7",)
    assert experiment_from(composed("+experiment=wan30ms", "~figures")).figures == ()


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


@pytest.mark.parametrize(("lacking", "key"), [("URL", "url"), ("BUCKET", "bucket"), ("TOKEN", "token")])
def test_a_server_that_is_not_wholly_named_is_refused(influxdb, monkeypatch, lacking, key):
    monkeypatch.delenv(f"INFLUXDB_V2_{lacking}")
    with pytest.raises(ConfigError, match=rf"store\.{key}.*INFLUXDB_V2_{lacking}"):
        experiment_from(composed("+experiment=smoke", "store=influxdb"))


def test_a_token_file_that_is_not_there_is_named(influxdb, tmp_path):
    with pytest.raises(ConfigError, match="no-such-file"):
        experiment_from(composed("+experiment=smoke", "store=influxdb", f"store.token_file={tmp_path}/no-such-file"))


def test_where_readings_go_is_not_what_is_measured(influxdb):
    assert config_hash(composed("+experiment=smoke", "store=influxdb")) == config_hash(composed("+experiment=smoke"))


@pytest.mark.parametrize(
    "override", ["loaders.pytorch.workers=3", "regimes.moon.rtt_ms=3", "repeat=3", "loaders.tape.x=1"]
)
def test_an_unknown_key_does_not_compose(override):
    with pytest.raises(HydraException):
        composed("+experiment=wan30ms", override)


def test_an_unknown_experiment_lists_the_known_ones():
    with pytest.raises(HydraException, match=r"(?s)nowhere.*wan30ms"):
        composed("+experiment=nowhere")


def test_no_experiment_says_how_to_choose_one():
    with pytest.raises(ConfigError, match=r"\+experiment="):
        experiment_from(composed())


def test_an_experiment_without_loaders_is_refused():
    with pytest.raises(ConfigError, match="loaders"):
        experiment_from(composed("+experiment=smoke", "~loaders.dali", "~loaders.pytorch", "~loaders.streaming"))


def test_the_hash_follows_what_is_measured_and_not_where_it_is_stored():
    plain = config_hash(composed("+experiment=smoke"))
    assert plain == config_hash(composed("+experiment=smoke", "results_dir=/elsewhere", "resume=latest"))
    assert plain != config_hash(composed("+experiment=smoke", "seed=1"))
