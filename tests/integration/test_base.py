"""The package without extras, in an environment of its own: joules, judging and drawing, and what is missing named."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joulefeed.version import EXTRAS
from tests.integration.runs import BUSY, SMALL, command, places, run

pytestmark = [pytest.mark.process, pytest.mark.slow]

REPO = Path(__file__).parents[2]
MOST_MB = 520  # pyarrow, pandas, numpy and matplotlib with seaborn are 450 of them


def pythons():
    """Return this interpreter, and one of each later version that is installed beside it."""
    pyenv, usr = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")), Path("/usr")
    later = [[*pyenv.glob(f"versions/3.{n}.*/bin/python3.{n}"), *usr.glob(f"bin/python3.{n}")] for n in (12, 13, 14)]
    return [sys.executable, *(str(found[0]) for found in later if found)]


@pytest.fixture(scope="module", params=pythons())
def joulefeed(request, tmp_path_factory):
    """Return how to run the command of the package, installed from its wheel without extras."""
    home = tmp_path_factory.mktemp("base install")
    wheel = run(["sh", str(REPO / "playbooks" / "wheel.sh")])
    assert wheel.returncode == 0, wheel.stderr
    uv = shutil.which("uv") or str(REPO / ".venv-uv" / "bin" / "uv")
    subprocess.run([uv, "venv", "--quiet", "--python", request.param, home / ".venv"], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", home / ".venv" / "bin" / "python"]
    subprocess.run([*install, "--constraint", REPO / "requirements.lock", wheel.stdout.strip()], check=True)

    def run_command(*words, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
        return run([str(home / ".venv" / "bin" / "joulefeed"), *words], cwd=home, env=environment)

    run_command.packages = home / ".venv" / "lib"
    return run_command


def test_the_base_is_small_and_has_no_torch(joulefeed):
    files = [path for path in joulefeed.packages.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any("torch" in path.parts for path in files)
    assert sum(path.stat().st_size for path in files) / 1e6 <= MOST_MB


def test_it_measures_a_command_and_says_what_the_host_can_measure(joulefeed):
    assert joulefeed("energy", "exec", "--", "true").returncode == 0
    assert "sensors" in joulefeed("doctor").stdout
    assert joulefeed("advise", "--help").returncode == 0


def test_it_writes_skeletons_and_names_the_extra_of_a_server(joulefeed):
    assert "of_mine.py" in joulefeed("new", "workload", "of_mine").stdout
    server = {"INFLUXDB_V2_URL": "http://127.0.0.1:1", "INFLUXDB_V2_BUCKET": "energy", "INFLUXDB_V2_TOKEN": "none"}
    refused = joulefeed("energy", "dashboard", **server)
    assert refused.returncode == 2 and "pip install 'joulefeed[influx]'" in refused.stderr
    refused = joulefeed("run", "--multirun", "+experiment=smoke", "seed=0,1", "hydra/launcher=submitit_slurm")
    told = ("pip install 'joulefeed[cluster]'", "Python 3.11 to 3.13")  # in Python 3.14 Hydra does not start
    assert refused.returncode == 2 and any(one in refused.stderr for one in told)


def test_it_draws_judges_and_compares_a_run_and_says_which_extra_runs_one(joulefeed, tmp_path):
    only = ["~loaders.dali", "~loaders.streaming"]
    done = run(command("+experiment=smoke", *SMALL, *BUSY, *only, *places(tmp_path)))
    assert done.returncode == 0, done.stderr
    folder = str((tmp_path / "results" / "latest").resolve())
    for words in (["report", folder], ["validate", folder], ["compare", folder, folder]):
        done = joulefeed(*words)
        # One epoch decides nothing.
        assert done.returncode in ({0, 3} if words[0] == "compare" else {0}), (words, done.stdout, done.stderr)
    missing = joulefeed("run", "+experiment=smoke", *places(tmp_path))
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1
    told = ("pip install 'joulefeed[torch]'", "pip install 'joulefeed[streaming]'", "Python 3.11 to 3.13")
    assert any(one in missing.stderr for one in told)  # the extra whose package is imported first


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_an_extra_brings_what_its_part_needs(extra, tmp_path):
    done = run([sys.executable, str(REPO / "benchmarks/install.py"), "--only", extra, "--results", str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
