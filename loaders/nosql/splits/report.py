"""What became of splits: their sizes, entities and class shares beside those that were asked for."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from loaders.nosql.splits.generator import LEFT_OUT, Splits

Report: TypeAlias = dict[str, Any]
"""The JSON object of a report."""
_SHOWN: Final = 3


def describe(splits: Splits) -> Report:
    """Return the report: numbers of samples and entities, and shares, by split and by class.

    A `deviation` of a split is its share of the samples that are in splits less the share that was asked for. That of
    a class is its share of the split less its share of the dataset, or with balance=equal less that of equal classes.
    """
    metadata, codes = splits.metadata, splits.codes
    kept = codes != LEFT_OUT
    total = int(kept.sum())
    wanted = _wanted_classes(splits)
    report: Report = {
        "seed": splits.seed,
        "balance": splits.balance,
        "folds": splits.folds,
        "metadata": {
            "sha256": metadata.sha256,
            "samples": len(metadata),
            "id": metadata.id_name,
            "label": metadata.classes and metadata.classes.name,
            "entity": metadata.entities and metadata.entities.name,
            "entities": metadata.entities and len(metadata.entities.values),
        },
        "splits": {},
        "left_out": {"samples": len(codes) - total, "classes": _count_classes(splits, ~kept)},
    }
    for place, (name, asked) in enumerate(splits.shares.items()):
        inside = codes == place
        samples = int(inside.sum())
        shares = {
            label: {"samples": count, "share": count / samples, "deviation": count / samples - wanted[label]}
            for label, count in _count_classes(splits, inside).items()
        }
        report["splits"][name] = {
            "asked": asked,
            "share": samples / total,
            "deviation": samples / total - asked,
            "samples": samples,
            "entities": metadata.entities and len(np.unique(metadata.entities.codes[inside])),
            "classes": shares,
        }
    return report


def _wanted_classes(splits: Splits) -> dict[str, float]:
    counts = _count_classes(splits, np.ones(len(splits.codes), bool))
    if splits.balance == "equal":
        return dict.fromkeys(counts, 1 / len(counts))
    return {label: count / len(splits.codes) for label, count in counts.items()}


def _count_classes(splits: Splits, inside: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, int]:
    classes = splits.metadata.classes
    if classes is None:
        return {}
    counts = np.bincount(classes.codes[inside], minlength=len(classes.values))
    return {str(value): int(count) for value, count in zip(classes.values, counts, strict=True)}


def show(report: Report) -> str:
    """Return a report as lines of text, with the classes that deviate most."""
    known = report["metadata"]
    of = f"{known['samples']} samples" + (
        f" of {known['entities']} values of {known['entity']}" if known["entity"] else ""
    )
    lines = [f"{of}, balance {report['balance']}, seed {report['seed']}"]
    width = max(map(len, report["splits"]))
    for name, split in report["splits"].items():
        line = (
            f"{name:<{width}}  {split['samples']:>9} samples  {split['share']:7.2%} "
            f"({split['deviation'] * 100:+.2f} points of {split['asked']:.2%})"
        )
        if split["entities"] is not None:
            line += f"  {split['entities']} entities"
        worst = sorted(split["classes"].items(), key=lambda each: -abs(each[1]["deviation"]))[:_SHOWN]
        if worst:
            line += "  classes: " + ", ".join(
                f"{label} {each['share']:.2%} ({each['deviation'] * 100:+.2f})" for label, each in worst
            )
        lines.append(line)
    left_out = report["left_out"]
    if left_out["samples"]:
        most = sorted(left_out["classes"].items(), key=lambda each: -each[1])[:_SHOWN]
        lines.append(
            f"left out: {left_out['samples']} samples, most of the classes "
            + ", ".join(f"{label} ({count})" for label, count in most)
        )
    return "\n".join(lines)
