"""docs/figures.md: its example of a figure of one's own is drawn as it stands there."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from harness.config.experiment import experiment_from
from harness.errors import ResultsError
from harness.report import check_figures, read_report, render
from harness.report.figures.definition import list_packaged

EXPERIMENTS = Path(__file__).parents[2] / "conf" / "experiment"
DOC = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()


def example(name):
    return re.search(rf"<!-- worked example: {name} -->\n```\w+\n(.*?)```", DOC, re.DOTALL)[1]


def test_a_figure_of_a_sweep_is_one_yaml(build_sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory_by_workers.yaml").write_text(example("figure"))
    named = tuple(yaml.safe_load(example("experiment"))["figures"])
    check_figures(named)
    rendered = render(read_report(build_sweep(figures=named).write()))
    assert not rendered.broken
    assert {"memory_by_workers.png", "memory_by_workers.svg"} <= {path.name for path in rendered.files}
    page = rendered.files[-1].read_text()
    assert "The peak of an epoch in the run" in page
    assert "500 MB" in page


def test_the_module_of_the_example_draws_a_figure_and_a_table(build_sweep, tmp_path, monkeypatch):
    (tmp_path / "seconds_of_epochs.py").write_text(example("module"))
    monkeypatch.syspath_prepend(str(tmp_path))
    check_figures(["seconds_of_epochs"])
    rendered = render(read_report(build_sweep(figures=("seconds_of_epochs",)).write()))
    assert not rendered.broken
    page = rendered.files[-1].read_text()
    assert "A point is an epoch, in the order of the run." in page
    assert "5.00 s" in page
    sys.modules.pop("seconds_of_epochs")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"familly": "sweep"}, ("figure.yaml", "familly", "family")),
        ({"family": "pie"}, ("figure.yaml", "family", "pie", "sweep")),
        ({"panels": []}, ("figure.yaml", "panels")),
        ({"panels": [{"metric": "duration_s", "y": "s", "colour": "red"}]}, ("figure.yaml", "panels", "colour")),
        ({"panels": [{"metric": "speed", "y": "s"}]}, ("figure.yaml", "metric", "speed", "samples_per_s")),
        ({"caption": "{{ name }"}, ("figure.yaml", "caption", "template")),
        ({"by": "rank"}, ("figure.yaml", "by", "rank", "workload")),
        ({"values": "spdl/table9"}, ("spdl/table9", "table2")),
    ],
)
def test_what_is_wrong_in_a_figure_is_one_line_that_names_the_file_and_the_key(tmp_path, changed, named):
    (tmp_path / "figure.yaml").write_text(yaml.safe_dump(yaml.safe_load(example("figure")) | changed))
    with pytest.raises(ResultsError) as caught:
        check_figures([str(tmp_path / "figure.yaml")])
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in named), text


def test_every_figure_that_comes_with_the_project_is_a_valid_one():
    check_figures(list_packaged())
    named = {
        name for path in EXPERIMENTS.glob("*.yaml") for name in yaml.safe_load(path.read_text()).get("figures", ())
    }
    assert named == set(list_packaged())


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
    assert experiment.figures == ("memory_by_workers.yaml",)


def test_every_experiment_of_the_loaders_papers_is_told_of():
    shipped = {path.stem for path in EXPERIMENTS.glob("*.yaml")}
    loaders = {name for name in shipped if name.startswith(("minato", "spdl"))}
    assert loaders <= set(re.findall(r"`(\w+)`", DOC))
