"""How large a connection's send buffer has to be for a link, and whether TCP makes it so large itself."""

from __future__ import annotations

from pathlib import Path

from loaders.errors import LoaderConfigError
from loaders.streaming.daemon.log import log

__all__ = ["send_buffer"]

_TUNED = Path("/proc/sys/net/ipv4/tcp_wmem")
_ALLOWED = Path("/proc/sys/net/core/wmem_max")
_MOST_BYTES = 2**31
"""The kernel counts a buffer by an int."""


def send_buffer(bandwidth_gbit: float | None, rtt_ms: float | None) -> int | None:
    """Return the send buffer in bytes for a link, None where TCP's own tuning does as well or better.

    A sender keeps what is not acknowledged: the bandwidth-delay product, twice while TCP recovers a loss. A buffer
    that is set is no longer tuned, so one is set only where it is larger than what tuning may reach (tcp(7)).

    Raises LoaderConfigError for one number without the other, or one that is not more than 0.
    """
    if bandwidth_gbit is None and rtt_ms is None:
        return None
    if bandwidth_gbit is None or rtt_ms is None or not bandwidth_gbit > 0 or not rtt_ms > 0:
        raise LoaderConfigError("--bandwidth-gbit and --rtt-ms belong together, and are more than 0")
    product = 2 * bandwidth_gbit * 1e9 / 8 * rtt_ms * 1e-3
    if not product < _MOST_BYTES:
        raise LoaderConfigError(
            f"--bandwidth-gbit {bandwidth_gbit:g} and --rtt-ms {rtt_ms:g} ask for a send buffer of {product:g} bytes: "
            f"expected less than {_MOST_BYTES:g}"
        )
    wanted = int(product)
    tuned, allowed = int(_TUNED.read_text().split()[2]), int(_ALLOWED.read_text())
    # The kernel doubles what it is asked for, for its own use (socket(7)); what tuning reaches is counted with it.
    reached = min(wanted, allowed)
    if 2 * reached <= tuned:
        if wanted > tuned:
            log("send_buffer", wanted=wanted, allowed=allowed, tuned_to=tuned, advice=f"raise {_ALLOWED} or {_TUNED}")
        return None
    if reached < wanted:
        log("send_buffer", wanted=wanted, allowed=allowed, advice=f"raise {_ALLOWED}")
    return reached
