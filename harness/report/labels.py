"""How names and quantities are written in tables, figures and pages."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.config.regime import Regime
from harness.report.intervals import Ratio
from harness.results.reader import Results
from joulefeed.table import Table

UNKNOWN = "–"
MODEL_CHECK = "model check"
"""What a figure, a table or a verdict of replayed times is called; it is no measurement of preprocessing."""

_SPELLING = {
    "pytorch": "PyTorch",
    "dali": "DALI",
    "spdl": "SPDL",
    "decord": "Decord",
    "tfdata": "tf.data",
    "mosaic": "MosaicML",
    "pecan": "Pecan",
    "nosql": "NoSQL",
    "emlio": "EMLIO",
    "resnet50": "ResNet-50",
    "vgg19": "VGG-19",
    "unet3d": "UNet3D",
    "mask": "Mask",
    "rcnn": "R-CNN",
    "rnnt": "RNN-T",
    "speech": "Speech",
    "vit": "ViT",
    "b16": "B/16",
    "fixed": "fixed batch",
    "aware": "-aware",
}


def spell(key: str) -> str:
    """Write a config key the way its maker does: pytorch_8w is "PyTorch 8w"."""
    return " ".join(_SPELLING.get(part, part) for part in key.split("_") if part).replace(" -", "-")


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, and never with an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1
    return f"{rounded:.{max(decimals, 0)}f}"


def seconds(value: float | None) -> str:
    """Write a duration given in s."""
    return UNKNOWN if value is None else f"{significant(value)} s"


def joules(value: float | None) -> str:
    """Write an energy given in J, in J, kJ or MJ."""
    if value is None:
        return UNKNOWN
    for limit, scale, unit in ((9999.5, 1.0, "J"), (9_999_500.0, 1e3, "kJ"), (math.inf, 1e6, "MJ")):
        if abs(value) < limit:
            return f"{significant(value / scale)} {unit}"
    return f"{value:g} J"


def megabytes(value: float | None) -> str:
    """Write a size given in bytes."""
    if value is None:
        return UNKNOWN
    return f"{significant(value / 1e9)} GB" if value >= 1e9 else f"{significant(value / 1e6)} MB"


def factor(value: float | None) -> str:
    """Write a ratio: two decimals near 1, fewer above."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×" if value < 99.95 else f"{value:.0f}×"


def ratio(found: Ratio | None) -> str:
    """Write the ratio of two groups, with ≈ before it where no difference was found."""
    return UNKNOWN if found is None else f"{'≈' if found.is_noise else ''}{factor(found.value)}"


def write_ratio(found: Ratio | None) -> str:
    """Write a ratio as tables do: with † where a median is not of valid rows, or else * where one is of one repeat."""
    if found is None:
        return UNKNOWN
    return ratio(found) + ("*" * found.is_single if found.trusted else "†")


def span(found: Ratio | None) -> str:
    """Write the 95 % interval of a ratio, or that a median of one repeat has none; empty where there is no ratio."""
    if found is None or found.interval is None:
        return "one repeat" if found is not None and found.is_single else ""
    return f"{factor(found.interval.low).removesuffix('×')} to {factor(found.interval.high)}"


def least_difference(found: Ratio | None) -> str:
    """Write the smallest difference that a comparison finds; empty where none is known."""
    least = found.least_difference if found is not None else None
    return "" if least is None else f"±{percent(least)}"


def percent(share: float | None) -> str:
    """Write a share of 1 as per cent, with a decimal where it is below 10 %."""
    if share is None:
        return UNKNOWN
    decimals = 1 if 0 < abs(share) < 0.0995 else 0
    return f"{100 * share:.{decimals}f} %"


def rtt(rtt_ms: float) -> str:
    """Write a round-trip time given in ms."""
    return f"{rtt_ms:g} ms"


def accelerators(results: Results) -> str:
    """Return what ran the steps, as every output names it: that steps were emulated and how long they lasted too."""
    return "; ".join(dict.fromkeys(cell.accelerator for cell in results.cells if cell.accelerator))


def note_model_check(results: Results) -> str:
    """Return what every table of a run of replayed times says below it; empty for a run that measures."""
    return (
        f"{MODEL_CHECK}: samples and steps only wait, and no preprocessing is measured" if results.model_checks else ""
    )


def label_table(results: Results, table: Table) -> Table:
    """Return a table that says below it where it is of a model check."""
    note = note_model_check(results)
    return replace(table, notes=(note, *table.notes)) if note else table


def _label(regime: Regime) -> str:
    parts = [rtt(regime.rtt_ms)]
    parts += [f"{regime.loss_pct:g} % loss"] if regime.loss_pct else []
    parts += [f"{regime.jitter_ms:g} ms jitter"] if regime.jitter_ms else []
    parts += [f"{len(regime.paths)} paths"] if regime.paths else []
    return "local" if regime.is_local else ", ".join(parts)


def regime_labels(results: Results) -> dict[str, str]:
    """Return a short label per regime key: RTT, loss and jitter, or its key where two regimes share these."""
    plain = {key: _label(results.experiment.regimes[key]) for key in results.regimes}
    shared = [label for label in plain.values() if list(plain.values()).count(label) > 1]
    return {key: spell(key) if label in shared else label for key, label in plain.items()}
