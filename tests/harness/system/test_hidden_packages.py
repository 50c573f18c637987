"""A package of the user's own that has the name of one of joulefeed's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


def python(folder, *arguments, **environment):
    known = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=known | environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"),
    [("harness", "loaders/__init__.py"), ("harness.report", "energymon.py"), ("harness.validate", "conf/__init__.py")],
)
def test_it_is_named_in_one_line(module, name, tmp_path):
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.touch()
    done = python(tmp_path, "-m", module, "+experiment=smoke", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    shown = theirs.parent if theirs.name == "__init__.py" else theirs
    own = theirs.name.removesuffix(".py") if shown == theirs else theirs.parent.name
    assert done.stderr == (
        f"error: {shown} hides joulefeed's own package {own} ({ROOT / own}): rename it, start from another folder, "
        "or with python -P\n"
    )


def test_a_program_that_imports_the_harness_gets_an_import_error_and_a_folder_hides_nothing(tmp_path):
    (tmp_path / "loaders").mkdir()
    assert python(tmp_path, "-c", "import harness", PYTHONPATH=str(ROOT)).returncode == 0
    (tmp_path / "energymon.py").touch()
    done = python(tmp_path, "-c", "import harness", PYTHONPATH=str(ROOT))
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'energymon.py'} hides")


def test_with_p_neither_a_program_nor_what_it_starts_sees_it(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    child = "import harness; print(harness.__file__)"
    program = (
        "import subprocess, sys; from harness.system.program import run_program; "
        f"run_program(lambda: subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    )
    done = python(tmp_path, "-P", "-c", program, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout.strip()) == (0, str(ROOT / "harness" / "__init__.py")), done.stderr
