"""What a probe of a regime's link must show, chance included; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.config.regime import Regime
from harness.config.specs import Tolerances
from harness.testbed.base import ProbeResult
from harness.testbed.link.measure.roundtrip import NORMAL_P10_TO_P90

CHANCE = 3.29
"""Standard errors of a normal distribution outside which lies one value in 1,000."""
MEDIAN_ERROR = 1.2533
"""Standard error of the median of n normal values, in standard deviations / sqrt(n)."""
SPREAD_ERROR = 0.889
"""The same of the spread between the 10th and the 90th percentile."""
QUANTILES = 400
MOST_SHORTER = 0.4
"""Share by which a round trip may be shorter than the regime's, whatever `checks.rtt_ms` allows. At 0.1 ms it is what
waking a processor adds to one measurement and not to the next, 0.04 ms; from 0.25 ms on `checks.rtt_ms` allows less."""


@dataclass(frozen=True, slots=True)
class LinkBound:
    """A property of the link, as asked for and as probed."""

    rule: str
    asked: float
    allowed: float
    found: float | None
    unit: str
    least: float = 0.0
    """Lower bound beside the allowed deviation."""

    @property
    def kept(self) -> bool:
        """Whether the probe found it within the bounds."""
        return self.found is not None and abs(self.found - self.asked) <= self.allowed and self.found >= self.least

    @property
    def expected(self) -> str:
        """The bounds in words."""
        at_least = f", at least {self.least:.2g}" if self.least > self.asked - self.allowed else ""
        return f"{self.asked:.4g} ± {self.allowed:.2g}{at_least} {self.unit}"


def allowed_rtt_ms(regime: Regime, tolerances: Tolerances) -> float:
    """Return by how much a round trip may differ from the regime's, ms."""
    return max(tolerances.rtt_ms, regime.rtt_ms * tolerances.rtt_pct / 100)


def list_link_bounds(regime: Regime, probe: ProbeResult | None, tolerances: Tolerances) -> list[LinkBound]:
    """Return what a probe of a regime with a link must show: round trip, rate, and jitter and loss where asked for.

    Chance adds to the tolerance, as the samples are few: `CHANCE` standard errors of the median, the spread
    or the count that was measured.
    """
    rate = regime.rate_gbit or 0.0
    rtt_ms, rate_gbit = (probe.rtt_ms_median, probe.rate_gbit) if probe else (None, None)
    rtt_allowed = allowed_rtt_ms(regime, tolerances)
    least_ms = (1 - MOST_SHORTER) * regime.rtt_ms
    if not regime.jitter_ms:
        bounds = [LinkBound("rtt", regime.rtt_ms, rtt_allowed, rtt_ms, "ms", least_ms)]
    else:
        median_ms, jitter_ms = predict_jitter(regime)
        error = CHANCE / math.sqrt((probe.rtt_samples if probe else 0) or 1)
        rtt_allowed += error * MEDIAN_ERROR * math.sqrt(2) * jitter_ms
        jitter_allowed = jitter_ms * (tolerances.jitter_pct / 100 + error * SPREAD_ERROR)
        bounds = [
            LinkBound("rtt", median_ms, rtt_allowed, rtt_ms, "ms", least_ms),
            LinkBound("jitter", jitter_ms, jitter_allowed, probe.jitter_ms if probe else None, "ms"),
        ]
    bounds.append(LinkBound("rate", rate, rate * tolerances.rate_pct / 100, rate_gbit, "Gbit/s"))
    if regime.loss_pct:
        to_compute = (probe.lost_to_compute, probe.packets_to_compute) if probe else (None, None)
        to_storage = (probe.lost_to_storage, probe.packets_to_storage) if probe else (None, None)
        bounds.append(_bound_loss("loss_to_compute", regime.loss_pct, *to_compute))
        bounds.append(_bound_loss("loss_to_storage", regime.loss_pct, *to_storage))
    return bounds


def predict_jitter(regime: Regime) -> tuple[float, float]:
    """Return the median round trip and the one-way jitter, in ms, that a regime's link has.

    The delay of each way is normally distributed and never below 0, so jitter that is large against the delay moves
    the median and narrows the spread.
    """
    if regime.rtt_ms / 2 >= 3 * regime.jitter_ms:
        return regime.rtt_ms, regime.jitter_ms
    normal = NormalDist(regime.rtt_ms / 2, regime.jitter_ms)
    one_way = np.array([max(0.0, normal.inv_cdf((k + 0.5) / QUANTILES)) for k in range(QUANTILES)])
    trips = np.add.outer(one_way, one_way).ravel()
    p10, p50, p90 = np.percentile(trips, (10, 50, 90))
    return float(p50), float((p90 - p10) / NORMAL_P10_TO_P90 / math.sqrt(2))


def _bound_loss(rule: str, loss_pct: float, lost: int | None, sent: int | None) -> LinkBound:
    share = loss_pct / 100
    allowed = 100 * CHANCE * math.sqrt(share * (1 - share) / sent) if sent else 0.0
    return LinkBound(rule, loss_pct, allowed, 100 * (lost or 0) / sent if sent else None, "%")
