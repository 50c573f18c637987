"""`joulefeed new KIND NAME`: writes a working skeleton, and a test that runs it, into a folder of the user's own.

The skeletons are the worked examples of the documentation's pages, with the name instead of theirs.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[1]


class _Skeleton(NamedTuple):
    """Where a skeleton stands, and what of it has the user's name: `{name}`, or `{type}` for a class."""

    page: str
    files: Mapping[str, str]
    """Where each worked example of the page goes."""
    words: Mapping[str, str]
    """What stands instead of words of the examples."""
    options: str
    """What runs it."""
    makes: str = ""
    """Lines of the test that come before the run."""
    more: str = ""
    """Further options of the run in the test."""


_PICTURES: Final = """
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    lines = ["file,label", *(f"{number}.jpg,{number % 2}" for number in range(20))]
    (pictures / "labels.csv").write_text("\\n".join(lines))
    for number in range(20):
        Image.effect_noise((100, 80), 90).convert("RGB").save(pictures / f"{number}.jpg")"""
_SMALL: Final = ' "~loaders.dali", "~loaders.streaming"'
_CONF: Final = "my_conf/{kind}/{name}.yaml"
_FIGURES: Final = {"name: memory": "name: {name}"}
_SKELETONS: Final = {
    "dataset": _Skeleton(
        "extending.md",
        {"my_dataset.py": "{name}.py", "my_conf/dataset/csv_images.yaml": _CONF},
        {"my_dataset": "{name}", "CsvImages": "{type}", "csv_images": "{name}"},
        "+experiment=smoke dataset={name}",
        _PICTURES,
        _SMALL + ', f"dataset.root={pictures}"',
    ),
    "loader": _Skeleton(
        "extending.md",
        {"my_loader.py": "{name}.py", "my_conf/loader/threads.yaml": _CONF},
        {"my_loader": "{name}", "ThreadPoolLoader": "{type}"},
        "+experiment=smoke +loader@loaders.{name}={name}",
        more=_SMALL,
    ),
    "workload": _Skeleton(
        "workloads.md",
        {"my_workload.py": "{name}.py", "my_conf/workload/small_cnn.yaml": _CONF},
        {"my_workload": "{name}", "SmallCNN": "{type}", "small_cnn": "{name}"},
        "+experiment=smoke workload={name} accelerator=cpu",
        more=_SMALL,
    ),
    "figure": _Skeleton(
        "figures.md",
        {"figure": "{name}.yaml", "experiment": "my_conf/experiment/{name}.yaml"},
        {**_FIGURES, "memory_by_workers.yaml": "{name}.yaml"},
        "+experiment={name}",
    ),
    "experiment": _Skeleton(
        "figures.md", {"experiment": _CONF}, {**_FIGURES, "[memory_by_workers.yaml]": "[memory]"}, "+experiment={name}"
    ),
}
_TEST: Final = '''\
"""A short run of it has valid rows."""

import os
import subprocess
import sys
from pathlib import Path
{imports}
HERE = Path(__file__).parent


def test_a_short_run_is_valid(tmp_path):
    command = "--config-dir=my_conf {options}".split(){makes}
    short = ["dataset.samples=64", "repeats=1", "warmup_samples=0", f"results_dir={{tmp_path}}"{more}]
    # Other programs of this machine are none of this test's business.
    short += ["checks.others_cpu_pct=100", "checks.others_cpus=1000", "checks.steal_pct=100"]
    short += ["checks.step_pct=1000", "checks.pressure_pct=100"]
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    run = [sys.executable, "-m", "harness", *command, *short]
    assert subprocess.run(run, cwd=HERE, env={{**os.environ, "PYTHONPATH": paths}}, check=False).returncode == 0
'''


def main(argv: Sequence[str] | None = None) -> int:
    """Write a skeleton; returns 0, or 2 for a name that cannot be one or is taken, and where nothing can be written."""
    parser = argparse.ArgumentParser(
        prog="joulefeed new", description="Write a working skeleton, and a test that runs it, into this folder."
    )
    parser.add_argument("kind", choices=_SKELETONS, metavar="KIND", help=", ".join(_SKELETONS))
    parser.add_argument("name", metavar="NAME", help="lower-case, as of a module: tar_images")
    options = parser.parse_args(argv)
    files = _make_files(options.kind, options.name)
    if problem := _find_problem(options.kind, options.name, files):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for file, text in files.items():
        try:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(text)
        except OSError as error:
            print(f"error: {file}: cannot be written: {error.strerror}; start in another folder", file=sys.stderr)
            return 2
        print(file)
    words = _SKELETONS[options.kind].options.format(name=options.name)
    print(f"\nrun it:   python -m harness --config-dir=my_conf {words}")
    print(f"test it:  python -m pytest test_{options.name}.py")
    return 0


def _find_problem(kind: str, name: str, files: Mapping[str, str]) -> str:
    """Return why a name cannot be used, or nothing."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        return f"{name}: expected a name of lower-case letters, numbers and _, which begins with a letter"
    if taken := [file for file in files if Path(file).exists()]:
        return f"{taken[0]} is there already; nothing was written"
    if find_spec(name) or (_ROOT / "conf" / kind / f"{name}.yaml").exists():
        return f"{name}: joulefeed or another package has a {kind} or a module of that name; choose another"
    return ""


def _make_files(kind: str, name: str) -> dict[str, str]:
    """Return a skeleton's files by path."""
    one = _SKELETONS[kind]
    given = {"name": name, "kind": kind, "type": "".join(word.capitalize() for word in name.split("_"))}
    # A wheel has the pages inside of the package.
    pages = Path(__file__).with_name("pages")
    page = ((pages if pages.exists() else _ROOT / "docs") / one.page).read_text()
    files = {}
    for example, file in one.files.items():
        (text,) = re.findall(rf"<!-- worked example: {re.escape(example)} -->\n```\w+\n(.*?)```", page, re.DOTALL)
        for word, instead in one.words.items():
            text = text.replace(word, instead.format(**given))
        files[file.format(**given)] = text
    imports = "\nfrom PIL import Image\n" if one.makes else ""
    options = one.options.format(**given)
    more = f",{one.more}" if one.more else ""
    files[f"test_{name}.py"] = _TEST.format(imports=imports, options=options, makes=one.makes, more=more)
    return files


if __name__ == "__main__":
    sys.exit(main())
