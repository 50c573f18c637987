"""The pages about clusters: their inventories are valid, their commands are known, and their files are there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from harness.config.command_line import compose_config, expand, split
from harness.config.experiment import experiment_from
from harness.testbed.__main__ import main
from harness.testbed.hosts.inventory import Inventory

REPO = Path(__file__).parents[3]
PAGES = ("cluster.md", "gpu-host.md", "slurm.md")


def blocks(page, kind=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```", (REPO / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return [text for of_kind, text in found if of_kind == kind]


def commands(program):
    """Yield each line of a block that starts a program, and the words behind it."""
    for page in PAGES:
        for block in blocks(page):
            for line in block.replace("\\\n", " ").splitlines():
                command, _, _ = line.partition("  #")
                if command.startswith(f"{program} "):
                    yield command, shlex.split(command.removeprefix(program))


PYTHON = ".venv/bin/python -m"
HARNESS = [*commands(f"{PYTHON} harness")]
MAKE = [*commands("make")]


@pytest.mark.process
@pytest.mark.usefixtures("ansible")
@pytest.mark.parametrize("page", ["cluster.md", "gpu-host.md"])
def test_an_inventory_on_a_page_is_valid(page, tmp_path):
    (text,) = (text for text in blocks(page, "yaml") if text.startswith("all:"))
    (tmp_path / "hosts.yml").write_text(text)
    inventory = Inventory.load(tmp_path / "hosts.yml")
    assert inventory.lead.name in ("compute1", "gpu1")


def test_the_variables_on_the_page_of_slurm_are_those_of_a_host():
    from harness.testbed.hosts.inventory import Host

    (text,) = blocks("slurm.md", "yaml")
    host = {"name": "n1", "roles": ["compute"], "ansible_host": "n1", **yaml.safe_load(text)}
    assert Host.model_validate(host).gpus == 4


@pytest.mark.parametrize(("line", "overrides"), HARNESS, ids=[line for line, _ in HARNESS])
def test_an_experiment_on_a_page_is_composed(line, overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    first = [one.partition(",")[0] for one in overrides] if "--multirun" in overrides else overrides
    assert experiment_from(compose_config("config", expand(split(first)))).name


@pytest.mark.parametrize(("line", "targets"), MAKE, ids=[line for line, _ in MAKE])
def test_a_target_on_a_page_is_there(line, targets):
    known = re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert targets[0] in known
    arguments = dict(target.split("=", 1) for target in targets[1:])
    if "ARGS" in arguments:
        overrides = ["+experiment=wan30ms", *arguments["ARGS"].split()]
        assert experiment_from(compose_config("config", expand(split(overrides)))).name == "wan30ms"


def test_a_command_of_the_testbed_on_a_page_is_known(capsys):
    found = [*commands(f"{PYTHON} harness.testbed")]
    assert len(found) > 8
    for line, words in found:
        # A file that is not there is refused after the command line was read.
        arguments = [f"{word}.absent" if word.endswith(".yml") else word for word in words]
        if "--inventory" in arguments and "slurm:" not in arguments:
            assert main(arguments) == 2, line
            assert "no such file" in capsys.readouterr().err


def test_the_files_on_a_page_are_there():
    for page in PAGES:
        text = (REPO / "docs" / page).read_text()
        for name in re.findall(r"playbooks/[a-z_/]+\.yml", text):
            assert (REPO / name).is_file(), name
        for name in re.findall(r"\]\(([a-z-]+\.md)", text):
            assert (REPO / "docs" / name).is_file(), name
