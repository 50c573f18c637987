"""`python -m harness.validate FOLDER`: judge a results folder again from its raw files, and print what differs.

Rows, checks and claims are made in a temporary folder that has links to the raw files, by the code that makes them at
the end of a run. The folder itself stays as it is, unless `--write` puts the rows and checks into it.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyarrow import csv

from harness.config.experiment import config_hash
from harness.config.specs import Tolerances
from harness.errors import DIFFERS, INVALID_ROWS, CellError, HarnessError, ResultsError
from harness.results.checks import RULES_EDITION, Check
from harness.results.collect import Collected, collect
from harness.results.epoch_row import EpochRow, RankRow, make_schema, read_rows
from harness.results.files import COLLECT, read_json, refuse_damage
from harness.results.folder import RunFolder, RunManifest
from harness.results.metrics import EpochMetrics
from harness.system.disk import disk_errors
from harness.system.program import run_program

_Records: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The entries of a file by name, each with its columns."""
_REDRAW: Final = "python -m harness.report FOLDER writes it again"
_SHOWN: Final = 90
"""Characters of a text that a line shows."""
_SLACK: Final = 1e-9
"""Share by which a number may differ: other versions of numpy add in another order."""


@dataclass(frozen=True, slots=True)
class Validated:
    """What a results folder states, compared with what its raw files contain."""

    found: Collected
    claims: int
    differences: Sequence[str]
    notes: Sequence[str]
    """What to know of a folder: other rules, or limits of its own. It is no difference."""


def main(argv: Sequence[str] | None = None) -> int:
    """Judge a results folder again; status 0: it states what its raw files contain, 8: it does not, 2: unreadable.

    With --write: status 0, 3: a cell is damaged, 6: a row is invalid.
    """
    parser = argparse.ArgumentParser(
        prog="python -m harness.validate",
        description="Judge a results folder again from its raw files, and print what it states otherwise. Status: "
        "0 nothing, 8 something, 2 the folder cannot be read.",
    )
    parser.add_argument("folder", nargs="?", default="results/latest", help="a run's folder (default: %(default)s)")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the rows and checks into the folder, and compare nothing (default: the folder stays as it is). "
        "Status: 0, 3 a cell is damaged, 6 a row is invalid",
    )
    options = parser.parse_args(argv)
    try:
        run = RunFolder.find(options.folder, Path("results"))
        with disk_errors({"FOLDER": run.folder}):
            return _write(run) if options.write else _print(validate(run))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _write(run: RunFolder) -> int:
    found = collect(run)
    print(_count(found))
    print(f"redraw the report with: {shlex.join(['python', '-m', 'harness.report', str(run.folder)])}")
    for row in found.invalid:
        print(f"  {row.cell_id} epoch {row.epoch}: {row.valid}")
    for cell_id, reason in found.damaged.items():
        print(f"  {cell_id}: damaged: {reason}")
    return CellError.exit_status if found.damaged else INVALID_ROWS if found.invalid else 0


def _print(validated: Validated) -> int:
    differences = validated.differences
    for line in (*validated.notes, *differences):
        print(line)
    many = f"{len(differences)} difference{'' if len(differences) == 1 else 's'}"
    verdict = f"{many} to what the folder states" if differences else "the folder states the same"
    print(f"{_count(validated.found)}; {validated.claims} claims: {verdict}")
    return DIFFERS if differences else 0


def _count(found: Collected) -> str:
    return f"{len(found.rows)} rows, {len(found.rows) - len(found.invalid)} valid; {len(found.checks)} checks"


def validate(run: RunFolder) -> Validated:
    """Judge a run again from its raw files and compare. Nothing is written into the folder.

    Raises ResultsError where the plan, the config or the samples cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="joulefeed-validate-") as name:
        again = RunFolder(Path(name))
        for path in run.list_raw():
            (again.folder / path.name).symlink_to(path.absolute())
        try:
            found = collect(again)
            problem = _judge_claims(again)
        except ResultsError as error:
            raise ResultsError(str(error).replace(name, str(run.folder))) from error
        differences = [*_compare_config(run)]
        for cell_id, reason in found.damaged.items():
            why = reason.replace(f"{again.cell_folder(cell_id)}/", "").rpartition(";")[0]
            differences.append(f"cells/{cell_id}: damaged: {why}")
        differences += _compare_folders(run, again, found.damaged.keys())
        differences += [problem.replace(name, str(run.folder))] if problem else []
        claims = len(json.loads(again.claims.read_text())) if again.claims.exists() else 0
        return Validated(found, claims, differences, list(_list_notes(run)))


def _judge_claims(run: RunFolder) -> str:
    """Write the claims as they are judged here. Returns why that is impossible, or nothing."""
    # Figures take a second to import.
    from harness.report import read_report
    from harness.report.render import write_claims

    try:
        write_claims(read_report(run.folder))
    except ResultsError as error:
        return f"claims.json: cannot be judged: {error}"
    return ""


def _list_notes(run: RunFolder) -> Iterator[str]:
    if run.manifest.exists():
        try:
            edition = read_json(run.manifest, RunManifest, COLLECT).rules_edition
        except ResultsError:  # it is among the differences
            edition = RULES_EDITION
        if edition != RULES_EDITION:
            yield f"note: judged by rules of edition {edition}, here by edition {RULES_EDITION}: verdicts may differ"
    usual = Tolerances().model_dump()
    limits = run.read_tolerances().model_dump()
    own = [f"{name}={limits[name]:g} ({usual[name]:g} by default)" for name in usual if limits[name] != usual[name]]
    if own:
        yield f"note: limits of its own: {', '.join(own)}"


def _compare_config(run: RunFolder) -> Iterator[str]:
    planned, stored = run.read_plan().config_hash, config_hash(run.read_config())
    if planned != stored:
        yield f"config.yaml: is not that of the plan: stated hash {planned or 'none'}, found {stored}"


def _compare_folders(run: RunFolder, again: RunFolder, damaged: Collection[str]) -> Iterator[str]:
    """Yield a line for each entry of a file that the two folders do not both have, or have otherwise."""
    for stated, found in zip(_list_files(run), _list_files(again), strict=True):
        if not found.exists():  # no cell has ranks or was measured again, or the claims cannot be judged
            if stated.exists() and stated != run.claims:
                yield f"{stated.name}: stated, and not found"
            continue
        if not stated.exists():
            yield f"{stated.name}: is missing"
            continue
        try:
            before = _read(stated)
        except ResultsError as error:
            yield run.without_path(error)
            continue
        # What a damaged cell stated cannot be found.
        before = {
            name: one
            for name, one in before.items()
            if one.get("cell_id") not in damaged or one.get("rule") == "whole_cell"
        }
        yield from (f"{stated.name}: {line}" for line in _compare(before, _read(found)))


def _list_files(run: RunFolder) -> list[Path]:
    tables = (run.epochs_parquet, run.epochs_csv, run.metrics_parquet, run.metrics_csv)
    more = (run.refused_parquet, run.refused_csv, run.ranks_parquet, run.ranks_csv)
    return [run.manifest, *tables, *more, run.checks, run.claims]


def _read(path: Path) -> _Records:
    """Return the entries of a file that is made from raw files; raises ResultsError where it is damaged."""
    match path.stem:
        case "manifest":
            files = read_json(path, RunManifest, COLLECT).files
            return {name: {"SHA-256": checksum} for name, checksum in files.items()}
        case "checks":
            return _by_name(asdict(check) for check in read_json(path, tuple[Check, ...], COLLECT))
        case "claims":
            return _by_name(read_json(path, list[dict[str, Any]], _REDRAW))
    kind: type[Any] = {"metrics": EpochMetrics, "ranks": RankRow}.get(path.stem, EpochRow)
    if path.suffix == ".parquet":
        return _by_name(asdict(row) for row in read_rows(path, kind))
    schema = make_schema(kind)
    with refuse_damage(path, COLLECT):
        table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=schema))
        return _by_name(table.select(schema.names).to_pylist())


def _by_name(records: Iterable[Mapping[str, Any]]) -> _Records:
    found: dict[str, Mapping[str, Any]] = {}
    for one in records:
        parts = [one.get("cell_id"), one.get("rule"), one.get("id")]
        parts += [f"{key} {one[key]}" for key in ("epoch", "rank") if one.get(key) is not None]
        name = " ".join(map(str, filter(None, parts)))
        while name in found:
            name += ", again"
        found[name] = one
    return found


def _compare(stated: _Records, found: _Records) -> Iterator[str]:
    for name in dict.fromkeys((*stated, *found)):
        if name not in found:
            yield f"{name}: stated, and not found"
        elif name not in stated:
            yield f"{name}: found, and not stated"
        else:
            before, now = stated[name], found[name]
            columns = [key for key in dict.fromkeys((*before, *now)) if not _is_same(before.get(key), now.get(key))]
            texts = [f"{key}: stated {_show(before.get(key))}, found {_show(now.get(key))}" for key in columns]
            if texts:
                yield f"{name}: {'; '.join(texts)}"


def _is_same(stated: object, found: object) -> bool:
    if isinstance(stated, int | float) and isinstance(found, int | float):
        return math.isclose(stated, found, rel_tol=_SLACK, abs_tol=_SLACK**2)
    if isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        return all(map(_is_same, stated, found))
    return stated == found


def _show(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


if __name__ == "__main__":
    run_program(main)
