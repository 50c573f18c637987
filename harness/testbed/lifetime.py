"""The life of one run on this machine: registered before anything is made, removed whole when it ends.

The reaper, `python -m harness.testbed.lifetime RUN_ID ROOT`, is a process that outlives the harness. It waits for the
end of its standard input, which comes when the harness dies, even by SIGKILL. If the run's record exists then, the
harness could not clean up, and the reaper does.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from harness.errors import TestbedError
from harness.system.process import REAPER_VARIABLE, RUN_VARIABLE, run_environment
from harness.testbed.clean import tear_down
from harness.testbed.state import RunNames, RunState
from joulefeed.child import Child, ChildError

START_S = 60.0
END_S = 20.0


class Lifetime:
    """A run's record and its reaper; closing removes everything that carries the run's id.

    Raises TestbedError when the run cannot be registered, or something of it could not be removed.
    """

    def __init__(self, run_id: str) -> None:
        self._state = RunState.create(run_id)
        try:
            environment = run_environment(run_id)
            # The reaper must not count itself among the run's processes, which it kills.
            environment[REAPER_VARIABLE] = environment.pop(RUN_VARIABLE)
            argv = [sys.executable, "-m", "harness.testbed.lifetime", run_id, str(self.names.root)]
            self._reaper = Child(argv, env=environment, cwd=Path("/"))
        except BaseException:
            tear_down(self.names)
            self._state.forget()
            raise

    @property
    def names(self) -> RunNames:
        """The names that the run gives."""
        return self._state.names

    def wait_guarded(self) -> None:
        """Wait until the reaper would remove everything if this process were killed.

        Raises TestbedError when the reaper did not start.
        """
        try:
            self._reaper.ready(START_S)
        except ChildError as error:
            raise TestbedError(f"the reaper of run {self.names.run_id} did not start: it {error}") from error

    def close(self) -> None:
        """Remove everything of the run and end the reaper.

        A reaper that does not end in time is killed; a record that is left is for the next clean-up.
        """
        try:
            tear_down(self.names)
            self._state.forget()
        finally:
            # Where that failed, the reaper finds the record unlocked and tries once more.
            self._state.release()
            # A reaper that was stopped would not see the end of its input.
            self._reaper.hang_up()
            self._reaper.signal(signal.SIGCONT)
            self._reaper.stop(eof_s=END_S, term_s=0)


def main(run_id: str, root: str) -> int:
    """Wait for the end of the harness and remove the rest of its run; returns the exit status."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whatever ends the harness must not end its reaper first.
        signal.signal(signum, signal.SIG_IGN)
    # The harness closes its end as soon as it has read this, or is dead already.
    with suppress(BrokenPipeError):
        os.write(1, b'{"ready": true}\n')
    while os.read(0, 4096):
        pass
    state = RunState.take_over(RunNames(run_id, Path(root)), wait=True)
    if state is None:
        return 0
    try:
        tear_down(state.names)
    except TestbedError as error:
        state.release()
        print(f"joulefeed: {error}; python -m harness.testbed clean tries again", file=sys.stderr)
        return error.exit_status
    state.forget()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
