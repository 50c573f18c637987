from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("prose", Path(__file__).with_name("prose.py"))
assert _spec is not None
assert _spec.loader is not None
prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(prose)


def found(folder: Path, text: str, name: str = "module.py") -> list[str]:
    """Return the findings in a file of this text, each as "line: finding"."""
    path = folder / name
    path.write_text(text)
    return [f"{line}: {finding}" for line, finding in sorted(prose.findings(path))]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('"""The worker is told."""', "told"),
        ("# It tells\n", "tells"),
        ('x = f"starts {anew} anew"', "anew"),
        ('"""A disk, for one, may be full."""', "for one"),
        ('"""Waits for\n   ever."""', "for ever"),
        ('print("it hands "\n      "out slots")', "hands out"),
        ('"""Return what was read."""', "what was"),
        ("# Whoever asks, till then, and heeds it, has begun.\n", "Whoever"),
    ],
)
def test_a_word_to_avoid_is_found_in_docstrings_comments_and_messages(tmp_path: Path, text: str, word: str) -> None:
    assert any(f"'{word}'" in finding for finding in found(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "told = tells(anew=1)  # a comment",
        "x = {'told': 1}",
        '"""Wait for one epoch, wait for one, and say what is wrong. What is a slot? See `told`."""',
        'x = f"a value: {told or anew}"',
    ],
)
def test_identifiers_questions_and_common_uses_are_spared(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_the_line_of_a_finding_is_that_of_the_word(tmp_path: Path) -> None:
    assert found(tmp_path, '"""One.\n\nTwo,\nas told.\n"""\n')[0].startswith("4: ")


@pytest.mark.parametrize("name", ["page.md", "group.yaml"])
def test_markdown_and_yaml_are_read_without_code_and_keys(tmp_path: Path, name: str) -> None:
    text = "told: 1\n\n`anew`\n\n# begun\n"
    assert [finding.split(" is a word")[0] for finding in found(tmp_path, text, name)] == ["5: 'begun'"]


def test_a_public_function_names_the_errors_that_it_raises(tmp_path: Path) -> None:
    text = """
def bare():
    raise ValueError("x")

def named():
    '''Raises ValueError.'''
    raise ValueError("x")

def _private():
    raise ValueError("x")

class Box:
    '''Every method raises KeyError.'''

    def get(self):
        def inner():
            raise OSError
        raise KeyError(1) from None

    def put(self, error):
        raise error

class _Hidden:
    def get(self):
        raise KeyError(1)
"""
    assert [finding.split(":")[1].strip() for finding in found(tmp_path, text)] == ["bare raises ValueError"]


def test_many_parameters_are_listed_with_their_defaults(tmp_path: Path) -> None:
    listed = "\n".join(f"        p{n}: Seconds, default 1." for n in range(9))
    parameters = ", ".join(f"p{n}=1" for n in range(9))
    text = f"class Box:\n    '''A box.\n\n    Args:\n{listed}\n    '''\n\n    def __init__(self, {parameters}): ...\n"
    assert found(tmp_path, text) == []
    assert "list under Args: p3" in found(tmp_path, text.replace("        p3: Seconds, default 1.\n", ""))[0]
    assert "for p4" in found(tmp_path, text.replace("p4: Seconds, default 1", "p4: Seconds"))[0]
    assert found(tmp_path, text.replace("p8=1", "**p8").replace("Args:", "Of:")) == []


def test_the_command_prints_file_and_line_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("# anew\n")
    (tmp_path / "good.py").write_text("# again\n")
    assert prose.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path}/bad.py:1: 'anew'")
    assert prose.main([str(tmp_path / "good.py")]) == 0
