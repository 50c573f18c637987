"""The life of one run on this machine: registered before anything is made, removed whole when it ends."""

from __future__ import annotations

from harness.testbed.clean import tear_down
from harness.testbed.reaper import Reaper
from harness.testbed.state import RunNames, RunState

__all__ = ["Lifetime"]


class Lifetime:
    """Holds a run's record and its reaper; closing removes everything that carries the run's id.

    Raises:
        TestbedError: the run cannot be registered, or something of it could not be removed.
    """

    def __init__(self, run_id: str) -> None:
        self._state = RunState.create(run_id)
        try:
            self._reaper = Reaper(self._state.names)
        except BaseException:
            tear_down(self.names)
            self._state.forget()
            raise

    @property
    def names(self) -> RunNames:
        """The names that the run gives."""
        return self._state.names

    @property
    def reaper_pid(self) -> int:
        """Process id of the reaper."""
        return self._reaper.pid

    def wait_guarded(self) -> None:
        """Wait until the reaper would remove everything if this process were killed."""
        self._reaper.wait_ready()

    def close(self) -> None:
        """Remove everything of the run and let the reaper go."""
        try:
            tear_down(self.names)
            self._state.forget()
        finally:
            # Where that failed, the reaper finds the record unlocked and tries once more.
            self._state.release()
            self._reaper.close()
