"""A process that outlives the harness for long enough to remove what the harness made.

It waits for the end of its standard input, which comes when the harness dies, even by SIGKILL. If the run's record
is still there then, the harness could not clean up, and the reaper does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from harness.errors import TestbedError
from harness.system.process import REAPER_VARIABLE, RUN_VARIABLE, run_environment
from harness.testbed.clean import tear_down
from harness.testbed.state import RunNames, RunState

__all__ = ["Reaper", "main"]

START_PATIENCE_S = 60.0
END_PATIENCE_S = 20.0


class Reaper:
    """The harness's side: holds the other end of the reaper's standard input."""

    def __init__(self, names: RunNames) -> None:
        environment = run_environment(names.run_id)
        # It must not count itself among the run's processes, which it kills.
        environment[REAPER_VARIABLE] = environment.pop(RUN_VARIABLE)
        self._names = names
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.testbed.reaper", names.run_id, str(names.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The reaper's process id."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it would hear the harness die.

        Raises:
            TestbedError: it did not start.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_PATIENCE_S)[0]:
            raise TestbedError(f"the reaper of run {self._names.run_id} said nothing within {START_PATIENCE_S:g} s")
        if not self._process.stdout.readline():
            raise TestbedError(f"the reaper of run {self._names.run_id} did not start; see its message above")
        self._process.stdout.close()

    def close(self) -> None:
        """Let it go, and wait for it: it removes what is left of the run, which is nothing as a rule.

        One that does not end in time is killed; the run's record, if there is one, is then left for the next clean-up.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        # It may have been stopped, and would not see the end of its input.
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(run_id: str, root: str) -> int:
    """Wait for the harness to be gone and remove what is left of its run; returns the exit status."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whatever ends the harness must not end its reaper first.
        signal.signal(signum, signal.SIG_IGN)
    # The harness closes its end as soon as it has read this, or is dead already.
    with suppress(BrokenPipeError):
        os.write(1, b"ready\n")
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
