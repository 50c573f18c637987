"""The link as a user-space delay line between two TUN devices, for kernels without netem."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.system.process import RUN_VARIABLE, run_environment
from harness.testbed.link.base import LinkCounters, ShapedLink
from harness.testbed.link.namespace import INTERFACE, run_in
from harness.testbed.link.qdisc import cap_rate, kernel_has, qdisc_counts
from harness.testbed.link.userspace.delay_line import Impairment
from joulefeed.calls import CallError, call
from joulefeed.child import Child, ChildError

ANSWER_TIMEOUT_S = 20.0
TBF_PROBE = ("rate", "1gbit", "burst", "128kb", "limit", "1mb")


class RelayLink(ShapedLink):
    """Packets pass through a relay process that delays them; the kernel's tbf caps the rate where it has it.

    tbf caps the rate of `cap_interface` in both namespaces. Between routers it is one that packets pass before they are
    forwarded: TCP's small queues, which keep tbf's queue short, end there.

    Raises TestbedError when there is no TUN device or no permission, or the relay did not start.
    """

    kind = "relay"
    has_paths = True

    def __init__(
        self, storage_namespace: str, compute_namespace: str, cap_interface: str = INTERFACE, run_id: str = ""
    ) -> None:
        super().__init__(storage_namespace, compute_namespace)
        self._cap_interface = cap_interface
        self._kernel_caps = kernel_has(storage_namespace, "tbf", *TBF_PROBE)
        self._rate_gbit: float | None = None
        argv = [sys.executable, "-m", "harness.testbed.link.userspace.relay", storage_namespace, compute_namespace]
        environment = run_environment(run_id or os.environ.get(RUN_VARIABLE, ""))
        self._relay = Child(argv, env=environment, keep_stderr=True)
        try:
            try:
                self._priority = self._relay.ready(ANSWER_TIMEOUT_S)["priority"]
            except ChildError as error:
                raise self._gone(error) from error
            self._bring_up()
            self._measure_floor()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the relay."""
        return self._relay.pid

    def _cap(self, rate_gbit: float) -> None:
        if self._kernel_caps and rate_gbit != self._rate_gbit:
            for namespace in self._namespaces:
                cap_rate(namespace, rate_gbit, self._cap_interface)
        self._rate_gbit = rate_gbit

    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        assert self._rate_gbit is not None
        impairment = Impairment(
            delay_ns=round(delay_ms * 1e6),
            jitter_ns=round(jitter_ms * 1e6),
            loss=loss_pct / 100,
            rate_bits_s=None if self._kernel_caps else round(self._rate_gbit * 1e9),
            queue_ns=round(regime.queue_ms * 1e6),
        )
        if regime.paths and not self._kernel_caps:
            raise TestbedError(
                f"regimes.{regime.name}.paths: this kernel has no sch_tbf, so the link's rate cannot be capped across "
                "its paths: load the module (modprobe sch_tbf), or leave the paths out"
            )
        paths = [
            replace(
                impairment,
                delay_ns=round((delay_ms + (regime.path_rtt_ms(path) - regime.rtt_ms) / 2) * 1e6),
                jitter_ns=round(regime.path_jitter_ms(path) * 1e6),
                loss=regime.path_loss_pct(path) / 100,
                rate_bits_s=None if path.rate_gbit is None else round(path.rate_gbit * 1e9),
            )
            for path in regime.paths
        ]
        self._ask("set", directions=[asdict(impairment)] * 2, paths=[asdict(path) for path in paths])

    def counters(self) -> LinkCounters:
        """Read the cumulative counters: the relay's, and the drops before it in qdisc and device.

        Raises TestbedError when the relay is gone.
        """
        relayed = LinkCounters.of(self._ask("counters"))
        before_relay = sum(
            qdisc_counts(each, self._cap_interface)["drops"] + _device_drops(each) for each in self._namespaces
        )
        return replace(relayed, drops=relayed.drops + before_relay)

    def describe(self) -> dict[str, object]:
        """Describe the parts of the link and its calibration."""
        relay = {"priority": self._priority, "rate_cap": "tbf" if self._kernel_caps else "in the relay"}
        return {**super().describe(), "relay": relay}

    def _remove(self) -> None:
        # The end of the relay's descriptors removes both devices.
        self._relay.stop()

    def _ask(self, do: str, **arguments: Any) -> Any:
        if self._closed:
            raise TestbedError("the link is closed")
        try:
            return call(self._relay, do, timeout_s=ANSWER_TIMEOUT_S, **arguments)
        except (CallError, ChildError) as error:
            raise self._gone(error) from error

    def _gone(self, how: object) -> TestbedError:
        return TestbedError(f"the link's relay (pid {self._relay.pid}) {how}; nothing passes between the nodes")


def _device_drops(namespace: str) -> int:
    """Count the packets that the device's ring had no room for."""
    (device,) = json.loads(run_in(namespace, ["ip", "-s", "-j", "link", "show", "dev", INTERFACE]))
    return int(device["stats64"]["tx"]["dropped"])
