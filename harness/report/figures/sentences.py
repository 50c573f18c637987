"""Jinja templates of the sentences in a report, and the words of a run that captions and headings of figures use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2 import Environment, StrictUndefined, TemplateError

from harness.errors import ResultsError
from harness.report import papers
from harness.report.labels import accelerators, factor, joules, megabytes, percent, seconds, significant, spell
from harness.results.reader import Results

_SENTENCES: Final = Path(__file__).parents[1] / "template" / "remarks.yaml"
_ASSUMED: Final = re.compile(r"emulated: assumed (\S+) s a sample")


@lru_cache(maxsize=1)
def read_sentences() -> Mapping[str, Any]:
    """Return the templates of template/remarks.yaml."""
    found: Mapping[str, Any] = yaml.safe_load(_SENTENCES.read_text(encoding="utf-8"))
    return found


def run_words(results: Results) -> Mapping[str, object]:
    """Return what every template may use: `name`, `workload`, `accelerators`, `steps`, `emulated`, `assumed`, ...."""
    words = {
        "name": results.name,
        "workload": next(iter(results.workloads), ""),
        "accelerators": accelerators(results),
        "steps": _steps(results),
        "emulated": results.emulated,
        "assumed": any("assumed" in cell.accelerator for cell in results.cells),
        "memory": _memory(results),
        "scaled": _scaled(results),
        "timed_steps": _timed_steps(results),
        "model_checks": results.model_checks,
    }
    # What an emulation says of assumed steps is not so of those of a model check.
    emulation = fill(read_sentences()["emulation"], words) if results.emulated and not results.model_checks else ""
    return {**words, "emulation": emulation and f" {emulation}"}


def fill(template: str, words: Mapping[str, object]) -> str:
    """Return a template's text in one line. Raises ResultsError where it asks for a word that there is not."""
    try:
        return re.sub("[ \n]+", " ", _environment().from_string(template).render(words)).strip(" ")
    except TemplateError as error:
        raise ResultsError(f"template {template!r:.60}: {error}; it may use {', '.join(sorted(words))}") from error


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701  escaped by the page
    environment.filters |= {"spell": spell, "percent": percent, "factor": factor, "significant": significant}
    environment.filters |= {"seconds": seconds, "joules": joules, "megabytes": megabytes}
    environment.filters |= {"number": lambda value: f"{value:g}", "each": _each}
    environment.globals |= {"count": _count, "names": _names, "comma": _comma}
    environment.globals |= {
        "value": papers.low,
        "values": papers.find_table,
        "cite": lambda name: papers.read_paper(name).citation,
    }
    return environment


def _count(number: int, one: str, more: str = "") -> str:
    """Write how many of something there are: 1 epoch, 2 epochs."""
    return f"{number} {one if number == 1 else more or f'{one}s'}"


def _names(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def _comma(loop: Any) -> str:
    """Return what follows an entry of a list in a sentence."""
    return "" if loop.last else " and " if loop.revindex == 2 else ", "


def _each(values: Mapping[str, float], text: str, scale: float = 1.0) -> str:
    """Write the values of several loaders, each by `text`, a format of a number and the loader."""
    return ", ".join(text.format(scale * value, spell(loader)) for loader, value in values.items())


def _steps(results: Results) -> str:
    """Return what ran the steps; of steps that are assumed how long each workload's last."""
    found = {cell.workload: _ASSUMED.fullmatch(cell.accelerator) for cell in results.cells if cell.accelerator}
    assumed = {workload: one.group(1) for workload, one in found.items() if one is not None}
    if len(found) < 2 or len(assumed) < len(found):
        return accelerators(results)
    lasting = ", ".join(f"{spell(workload)} {duration}" for workload, duration in assumed.items())
    return f"emulated, s a sample assumed: {lasting}"


def _memory(results: Results) -> str:
    """Return how much memory a loader has."""
    limit = results.experiment.testbed.memory_mb
    return "memory not limited" if limit is None else f"{megabytes(1e6 * limit)} of memory a loader"


def _scaled(results: Results) -> str:
    """Return by how much the workloads' own waits are scaled; empty where they are not."""
    scales = {key: workload.params.get("time_scale") for key, workload in results.experiment.workloads.items()}
    return ", ".join(f"{spell(key)} by {scale}" for key, scale in scales.items() if scale not in (None, 1, 1.0))


def _timed_steps(results: Results) -> str:
    """Return which loaders' LightStep and HeavyStep take another time than the others'; empty where none do."""
    experiment = results.experiment
    if not any(workload.params.get("light_s") for workload in experiment.workloads.values()):
        return ""
    scales = {spell(one.base or key): one.params.get("timed_step_scale", 1) for key, one in experiment.loaders.items()}
    taken = " and ".join(f"{name} {scale:g} times" for name, scale in scales.items() if scale != 1)
    return f" LightStep and HeavyStep take {taken} the time that they take the other loaders." if taken else ""
