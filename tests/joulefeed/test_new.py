"""`joulefeed new`: what it writes works under the name that was given, and nothing that is there is lost."""

import subprocess
import sys

import pytest

from joulefeed.new import main

KINDS = ("dataset", "loader", "workload", "figure", "experiment")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_s_own_test_passes(kind, home, capsys):
    assert main([kind, "of_mine"]) == 0
    told = capsys.readouterr().out
    assert all((home / line).is_file() for line in told.split("\n\n")[0].splitlines())
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_of_mine.py"]
    done = subprocess.run(argv, cwd=home, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_has_the_name_and_no_word_of_the_example(kind, home):
    assert main([kind, "of_mine"]) == 0
    text = "".join(f"{path}\n{path.read_text()}" for path in home.rglob("*") if path.is_file())
    assert "of_mine" in text
    examples = (
        "csv_images",
        "CsvImages",
        "my_dataset",
        "my_loader",
        "ThreadPool",
        "small_cnn",
        "SmallCNN",
        "memory_by",
    )
    assert not [word for word in examples if word in text.replace("ThreadPoolExecutor", "")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["loader", "Mine"], "Mine: expected a name of lower-case letters"),
        (["loader", "class"], "class: expected a name"),
        (["loader", "torch"], "torch: joulefeed or another package has"),
        (["experiment", "smoke"], "smoke: joulefeed or another package has"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(words, said, capsys, home):
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert not list(home.iterdir())


def test_what_is_there_stays(home, capsys):
    (home / "of_mine.py").write_text("mine")
    assert main(["loader", "of_mine"]) == 2
    assert "of_mine.py is there already; nothing was written" in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["of_mine.py"]


def test_a_folder_in_which_nothing_can_be_written_is_named(home, capsys):
    (home / "my_conf").touch()
    assert main(["experiment", "of_mine"]) == 2
    assert capsys.readouterr().err.startswith("error: my_conf/experiment/of_mine.yaml: cannot be written: ")
