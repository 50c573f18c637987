"""Where an experiment runs: two nodes, a link between them and a remote mount, on one machine or on several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from harness.testbed.base import Mount, Node, Testbed
from harness.testbed.clean import clean

if TYPE_CHECKING:
    from harness.config.regime import Regime
    from harness.testbed.caches import Caches
    from harness.testbed.link import LinkKind

__all__ = ["Mount", "Node", "Testbed", "TestbedKind", "clean", "open_testbed"]

TestbedKind = Literal["auto", "local", "netns"]


def open_testbed(
    kind: TestbedKind,
    run_id: str,
    regimes: Sequence[Regime],
    *,
    link_kind: LinkKind = "auto",
    caches: Caches = "all",
    congestion: str = "cubic",
) -> Testbed:
    """Bring a testbed up.

    Args:
        kind: `local` without a link, `netns` with one between two network namespaces of this machine, `auto` for
            local where every regime is local and netns elsewhere.
        run_id: 1 to 32 letters and digits, part of every name that the run gives.
        regimes: the regimes that the testbed will be set to.
        link_kind: how the link is emulated, see `harness.testbed.link.open_link`; `auto` is the delay line where a
            regime has paths, which netem does not have.
        caches: what the kernel forgets before an epoch, see `harness.testbed.caches.drop_caches`.
        congestion: TCP's congestion control on both sides of a link.

    Raises TestbedError when a permission, a tool or a device is missing; the message names it and the remedy.
    """
    # Imported where they are used: the reaper and the probe are processes of their own and must start quickly.
    if kind == "local" or (kind == "auto" and all(regime.is_local for regime in regimes)):
        from harness.testbed.local import LocalTestbed

        return LocalTestbed(run_id, regimes, caches)
    from harness.testbed.netns import NetnsTestbed

    if link_kind == "auto" and any(regime.paths for regime in regimes):
        link_kind = "relay"
    return NetnsTestbed(run_id, link_kind, caches, congestion)
