"""What chronyc prints is recorded from chrony 4.3 on Debian 12."""

import os

import pytest

from energymon.clock.chrony import clock_state, ntp_offset

pytestmark = pytest.mark.process

SYNCHRONISED = (
    "7F000001,127.0.0.1,2,1795259132.884047702,0.250021040,0.000000500,0.000015130,-0.542,-0.011,7.403,"
    "0.003983518,0.007836212,1.0,Normal"
)
"""Against a server that was 250 ms ahead; `chronyc tracking` said "0.250021040 seconds slow of NTP time"."""
UNSYNCHRONISED = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,1.000000000,0.0,"
    "Not synchronised"
)


@pytest.fixture
def chronyc(tmp_path, monkeypatch):
    """Put a chronyc that says `line` first on PATH."""

    def say(line, status=0):
        script = tmp_path / "chronyc"
        script.write_text(f'#!/bin/sh\n[ "$*" = "-c tracking" ] || exit 9\ncat <<"EOF"\n{line}\nEOF\nexit {status}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return say


@pytest.fixture
def no_chrony(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_synchronised_chrony_tells_offset_and_bound(chronyc):
    chronyc(SYNCHRONISED)
    found = ntp_offset("n", 123)
    assert (found.t_ns, found.node, found.peer) == (123, "n", "chrony")
    assert found.offset_ns == 250_021_040
    assert found.error_ns == round((0.003983518 / 2 + 0.007836212) * 1e9)
    (line,) = clock_state()
    assert line == (
        "chrony: synchronised to 127.0.0.1 (stratum 2), system clock +250.021 ms from NTP time, ±9.828 ms from UTC"
    )


def test_an_unsynchronised_chrony_is_not_believed(chronyc):
    chronyc(UNSYNCHRONISED)
    found = ntp_offset("n", 123)
    assert found is None or found.peer == "kernel"
    assert clock_state()[0].startswith("chrony: not synchronised")


def test_a_chrony_that_does_not_run_is_told_in_its_own_words(chronyc):
    chronyc("506 Cannot talk to daemon", status=1)
    found = ntp_offset("n", 123)
    assert found is None or found.peer == "kernel"
    assert "506 Cannot talk to daemon" in clock_state()[0]
    assert clock_state()[1].startswith("kernel: ")


@pytest.mark.parametrize("line", ["", "what", "a,b,c,d,e,f,g,h,i,j,k,l,m,n"])
def test_a_chrony_of_another_kind_is_told(chronyc, line):
    chronyc(line)
    assert clock_state()[0].startswith("chrony: ")
    assert len(clock_state()) == 2


def test_without_chrony_the_kernel_is_asked(no_chrony):
    (line,) = clock_state()
    assert line.startswith(("kernel: synchronised", "kernel: the clock is not synchronised", "adjtimex: "))
    found = ntp_offset("n", 123)
    assert found is None or (found.peer == "kernel" and found.error_ns > 0)
    assert (found is not None) == line.startswith("kernel: synchronised")
