"""Whether all samples have the same tensors, so that workers may write them into the rows of batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaders.sample_aware.ipc.control_page import ControlPage
from loaders.sample_aware.ipc.messages import IN_ROW, Report
from loaders.sample_aware.ipc.serialize import Spec, spec_of

__all__ = ["Layout"]


class Layout:
    """Learns from the samples that lie apart, which is all of them at first."""

    def __init__(self, control: ControlPage) -> None:
        self._control = control
        self._varied = False
        self.spec: Spec | None = None
        """The tensors of a sample; None before the first one, and for good once two samples have differed."""

    def learn(self, report: Report, memory: npt.NDArray[np.uint8]) -> None:
        """Take note of a sample that is done."""
        if self._varied or report.offset == IN_ROW:
            return
        spec = spec_of(memory, report.offset, report.nbytes) if report.offset >= 0 else ()
        if self.spec is None and spec and self._control.set_spec(spec):
            self.spec = spec
        elif spec != self.spec:
            self._varied, self.spec = True, None
