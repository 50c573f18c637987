"""A cell of a loader with an environment of its own runs there; one that cannot be had is one message, before all."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.cli import main
from harness.config.command_line import compose_config
from harness.config.experiment import experiment_from
from harness.errors import TestbedError
from harness.run import prepare as environments
from harness.run.prepare import python_of
from loaders.fixed import FixedBatchLoader

OWN = "tests.harness.test_environments.Elsewhere"
SMALL = ["dataset.samples=12", "epochs=1", "repeats=1", "warmup_samples=0", "workloads.resnet50.batch_size=4"]


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    def run(*overrides):
        where = [f"results_dir={tmp_path}/results", f"cache_dir={tmp_path}/cache"]
        only = ["~loaders.pytorch", "~loaders.dali", "~loaders.streaming", "figures=[]", "accelerator=none"]
        monkeypatch.setattr(sys, "argv", ["harness", "+experiment=smoke", *SMALL, *only, *where, *overrides])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # it is set, and unset again after the test
        return main()

    return run


class Elsewhere(FixedBatchLoader):
    """A loader that says where it runs."""

    @property
    def notes(self):
        import streaming

        return (f"runs with {sys.executable} and streaming {streaming.__version__}",)


@pytest.mark.process
def test_a_cell_runs_in_its_loaders_environment_and_the_provenance_names_its_packages(smoke, tmp_path):
    assert smoke(f"+loaders.own={{_target_: {OWN}, reads: once, environment: mosaic}}") in (0, 6)
    (run,) = (tmp_path / "results").glob("2*")
    (cell,) = run.glob("cells/*/cell.json")
    there = python_of("mosaic")
    assert there != sys.executable
    assert any(f"runs with {there} and streaming 0.13" in note for note in json.loads(cell.read_text())["notes"])
    packages = json.loads(next(run.glob("provenance*.json")).read_text())["environments"]
    assert packages["mosaic.mosaicml-streaming"]["value"].startswith("0.13")
    assert packages["mosaic.torch"]["value"] == version("torch")


@pytest.mark.parametrize(
    ("loader", "overrides", "message"),
    [
        ("environment: mosiac", [], "loaders.own.environment=mosiac: no such environment; there are mosaic"),
        ("environment: vm", [], "loaders.own.environment=vm: no such environment"),
        ("environment: ../mosaic", [], "loaders.own.environment='../mosaic': expected the name of a script"),
        (
            "environment: mosaic",
            ["testbed=ssh", "testbed.inventory=hosts.yml"],
            "loaders.own.environment: testbed=ssh: the hosts do not have the environment mosaic",
        ),
    ],
)
def test_an_environment_that_cannot_be_is_refused_by_its_key(loader, overrides, message, smoke, capfd, tmp_path):
    assert smoke(f"+loaders.own={{_target_: {OWN}, reads: once, {loader}}}", *overrides) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.process
def test_a_script_that_fails_is_told_by_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken.sh"
    script.write_text("#!/bin/sh\necho 'broken: the packages could not be installed' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(environments, "PLAYBOOKS", tmp_path)
    said = r"playbooks/broken\.sh made no environment: broken: the packages could not be installed; run playbooks"
    with pytest.raises(TestbedError, match=said):
        python_of("broken")


@pytest.mark.process
def test_servers_are_there_before_anything_is_measured(tmp_path: Path) -> None:
    experiment = experiment_from(compose_config("config", ["+experiment=latency_tightloop"]))
    said: list[str] = []
    environments.make_environments(experiment, said.append)
    assert environments.servers_of(experiment) == {
        "cassandra": "loaders.nosql.daemon.module",
        "minio": "loaders.mosaic.daemon.module",
    }
    assert said[-2:] == [
        "finding or making the server cassandra (playbooks/cassandra.sh)",
        "finding or making the server minio (playbooks/minio.sh)",
    ]
    assert any(environments.find_server("cassandra").rglob("*cassandra*.jar"))
    assert environments.find_server("minio").is_file()
