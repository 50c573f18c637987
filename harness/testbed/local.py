"""The testbed without a link: both nodes are this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from harness.config.regime import Regime
from harness.errors import MountError, TestbedError
from harness.testbed.base import Mount, Node, ProbeResult, Testbed
from harness.testbed.caches import Caches
from harness.testbed.lifetime import Lifetime
from harness.testbed.mounts.remote_mounts import list_tree


class LocalTestbed(Testbed):
    """Runs every process on this machine itself; needs no permission, and knows local regimes only.

    Raises TestbedError when a regime needs a link, or the run cannot be registered.
    """

    kind: Literal["local"] = "local"

    def __init__(self, run_id: str, regimes: Sequence[Regime], caches: Caches = "all") -> None:
        super().__init__(run_id, caches)
        for regime in regimes:
            self.set_regime(regime)
        self.storage = Node("storage", run_id)
        self.compute = Node("compute", run_id)
        self.computes, self.storages = (self.compute,), (self.storage,)
        self._lifetime: Lifetime | None = Lifetime(run_id)
        try:
            self._lifetime.wait_guarded()
        except BaseException:
            self.close()
            raise

    def set_regime(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Refuse a regime that needs a link, by a TestbedError."""
        if not regime.is_local:
            raise TestbedError(
                f"regimes.{regime.name} has {regime.rtt_ms:g} ms, and the local testbed has no link: "
                "use testbed.kind=netns (or auto), or keep to regimes with rate_gbit=null"
            )

    def probe(self, regime: Regime) -> ProbeResult | None:
        """Return None: there is nothing to measure."""
        return None

    @contextmanager
    def mount(
        self, root: Path, regime: Regime, node: Node | None = None, storage: Node | None = None
    ) -> Iterator[Mount]:
        """Yield `root` as it is, its tree listed."""
        self.set_regime(regime)
        with local_mount(node or self.compute, root) as mount:
            yield mount

    def describe(self) -> dict[str, object]:
        """Describe the parts of the testbed."""
        return {**super().describe(), "mount": {"kind": "local"}}

    def close(self) -> None:
        """End every process of the run and remove its files."""
        lifetime, self._lifetime = self._lifetime, None
        if lifetime is not None:
            lifetime.close()


@contextmanager
def local_mount(compute: Node, root: Path) -> Iterator[Mount]:
    """Yield a directory of the compute node itself, its tree listed as a remote mount's is.

    Raises MountError when `root` is no directory, or cannot be listed.
    """
    if not compute.is_remote and not root.is_dir():
        raise MountError(f"{root}: expected a directory to read from")
    list_tree(compute, root)
    yield Mount(root, "local")
