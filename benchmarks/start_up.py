"""What the medians of a run leave out, from its rows: set-up and first epoch, and how far distance slows streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

NEAR_MS: Final = 0.1
FAR_MS: Final = 30.0
TURNS: Final = "streaming: settled epoch at 30 ms over 0.1 ms, the paper's bound"
"""The line of benchmarks/experiments.py that compares the two in turns with the EMLIO paper's bound (section 5.1)."""

Epoch = Mapping[str, Any]
"""A row of epochs.csv."""


def write_start_up(epochs: Sequence[Epoch], lines: Sequence[Mapping[str, Any]] = ()) -> Iterator[str]:
    """Return Markdown: the medians of a loader's set-up and first epoch by distance, and a sentence of streaming's.

    `lines` are those of the benchmark, among them TURNS.
    """
    shown = [epoch for epoch in epochs if epoch["valid"] == "valid"] or epochs
    first = {
        cell: min(epoch["epoch"] for epoch in epochs if epoch["cell_id"] == cell) for cell in _each(shown, "cell_id")
    }
    settled = [epoch for epoch in shown if epoch["epoch"] > first[epoch["cell_id"]]]
    yield from ("| round trip | loader | set-up | first epoch | settled epoch |", "|---|---|---|---|---|")
    for rtt_ms in sorted(_each(shown, "rtt_ms")):
        for loader in sorted(_each([epoch for epoch in shown if epoch["rtt_ms"] == rtt_ms], "loader")):
            mine = _of(loader, rtt_ms)
            start = [epoch for epoch in shown if mine(epoch) and epoch["epoch"] == first[epoch["cell_id"]]]
            times = [
                *(_median(start, column) for column in ("setup_s", "duration_s")),
                _median([epoch for epoch in settled if mine(epoch)], "duration_s"),
            ]
            yield (
                f"| {rtt_ms:g} ms | `{loader}` | "
                + " | ".join("–" if s is None else f"{s:.2f} s" for s in times)
                + " |"
            )
    # One turn, of a quick run, has no interval.
    turns = next((line for line in lines if line["what"] == TURNS and line["raw"]["interval"]), None)
    if sentence := _slowdown(settled, turns):
        yield from ("", sentence)


def _slowdown(settled: Sequence[Epoch], turns: Mapping[str, Any] | None) -> str:
    """Return how much longer streaming's settled epoch is when far, and of what; nothing without both distances."""
    both = [[epoch for epoch in settled if _of("streaming", rtt_ms)(epoch)] for rtt_ms in (NEAR_MS, FAR_MS)]
    (near_s, near_wait_s), (far_s, far_wait_s) = (
        (_median(epochs, "duration_s"), _median(epochs, "stall_s")) for epochs in both
    )
    if near_s is None or far_s is None or near_wait_s is None or far_wait_s is None:
        return ""
    return (
        f"The settled epoch of `streaming` is {_longer(far_s / near_s)} at {FAR_MS:g} ms than at {NEAR_MS:g} ms. "
        f"It waits {near_wait_s:.2f} s for batches at {NEAR_MS:g} ms and {far_wait_s:.2f} s at {FAR_MS:g} ms. "
        f"{_judge(turns) if turns else ''}"
        "Set-up and first epoch, in which connections are opened and workers started, are left out of it."
    )


def _judge(turns: Mapping[str, Any]) -> str:
    """Return what the turns say of the paper's bound."""
    raw = turns["raw"]
    low, high = (100 * (limit - 1) for limit in raw["interval"])
    bound = 100 * (float(turns["asked"].split()[-1]) - 1)
    verdict = {
        True: "so it holds here",
        False: "so it does not hold here",
        None: "so whether it holds here is within the noise",
    }
    return (
        f"EMLIO's paper says by less than {bound:.0f} % (section 5.1): in {len(raw['ratios'])} turns of both it is "
        f"{_longer(raw['value'])}, with a 95 % interval from {low:.1f} to {high:.1f} %, {verdict[turns['met']]}. "
    )


def _longer(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return f"{abs(percent):.1f} % {'longer' if percent >= 0 else 'shorter'}"


def _of(loader: str, rtt_ms: float) -> Callable[[Epoch], bool]:
    return lambda epoch: epoch["loader"] == loader and epoch["rtt_ms"] == rtt_ms


def _each(epochs: Sequence[Epoch], column: str) -> list[Any]:
    return list(dict.fromkeys(epoch[column] for epoch in epochs))


def _median(epochs: Sequence[Epoch], column: str) -> float | None:
    known = [epoch[column] for epoch in epochs if epoch[column] is not None]
    return median(known) if known else None
