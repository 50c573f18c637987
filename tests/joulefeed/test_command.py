"""`joulefeed COMMAND` does what `python -m` of the command's module does."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from joulefeed.__main__ import COMMANDS

pytestmark = pytest.mark.process


def joulefeed(*words):
    argv = [sys.executable, "-m", "joulefeed", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_help_names_every_command_and_each_has_a_module():
    told = joulefeed("--help").stdout
    for name, (command, what) in COMMANDS.items():
        module = command.split()[0]
        assert f"  {name:<10}{what}" in told
        assert find_spec(f"{module}.__main__" if find_spec(module).submodule_search_locations else module)


def test_a_command_gets_its_arguments_and_its_status_is_that_of_the_module():
    done = joulefeed("energy", "exec", "--", sys.executable, "-c", "raise SystemExit(5)")
    assert done.returncode == 5 and "status 5" in done.stderr
    config = joulefeed("run", "+experiment=smoke", "--cfg", "job")
    assert (config.returncode, config.stderr) == (0, "") and "name: smoke" in config.stdout


def test_resume_takes_a_folder_without_its_key(tmp_path):
    done = joulefeed("resume", "no_such_run", f"results_dir={tmp_path}")
    assert done.returncode == 2 and "no_such_run" in done.stderr


def test_an_unknown_command_is_told_those_that_there_are():
    done = joulefeed("runn")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: runn: no such command; expected one of run, resume, ")
