"""docs/figures.md: its example of a figure of one's own is drawn as it stands there."""

import re
import sys
from pathlib import Path

import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from harness.config.experiment import experiment_from
from harness.report import render
from harness.report.figures import check_figures

DOC = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()


def example(name):
    return re.search(rf"<!-- worked example: {name} -->\n```\w+\n(.*?)```", DOC, re.DOTALL)[1]


def test_the_module_of_the_example_draws_a_figure_and_a_table(build_sweep, tmp_path, monkeypatch):
    (tmp_path / "memory_by_workers.py").write_text(example("module"))
    monkeypatch.syspath_prepend(str(tmp_path))
    named = tuple(yaml.safe_load(example("experiment"))["figures"])
    check_figures(named)
    folder = build_sweep(figures=named).write()
    drawn = {path.name for path in render(folder).files}
    assert {"memory_by_workers.png", "memory_by_workers.svg"} <= drawn
    page = (folder / "report.html").read_text()
    assert "The most that was seen during an epoch" in page
    assert "500 MB" in page
    sys.modules.pop("memory_by_workers")


def test_the_experiment_of_the_example_is_a_valid_one(tmp_path):
    written = yaml.safe_load(example("experiment"))
    overrides = []
    for entry in written.pop("defaults"):
        ((group, option),) = entry.items()
        override = group.removeprefix("override ").lstrip("/")
        overrides.append(f"{override}={option}" if group.startswith("override") else f"+{override}={option}")
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", overrides=overrides)
    OmegaConf.set_struct(cfg, False)
    experiment = experiment_from(OmegaConf.merge(cfg, written))
    assert experiment.name == "memory"
    assert list(experiment.loaders) == ["pytorch_num_workers_1", "pytorch_num_workers_2"]
    assert experiment.figures == ("memory_by_workers",)


def test_every_experiment_of_the_loaders_papers_is_told_of():
    shipped = {path.stem for path in (Path(__file__).parents[2] / "conf" / "experiment").glob("*.yaml")}
    loaders = {name for name in shipped if name.startswith(("minato", "spdl"))}
    assert loaders <= set(re.findall(r"`(\w+)`", DOC))
