"""The shells of roles that note what was before: a note is whole or not there, and what fails is not passed over.

They run here alone, with a program that answers for systemd or tc, which namespace hosts do not have.
"""

import os
import shlex
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

pytestmark = pytest.mark.process

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
ANSWERS = {
    "systemctl": "echo active; [ $1 != stop ]",
    "sysctl": "echo net.ipv4.tcp_rmem = 1 2 3",
    # An interface with netem on it, which cannot be changed.
    "tc": "[ $2 = show ] && echo qdisc netem 1: root || { echo RTNETLINK: refused >&2; exit 2; }",
}


def run(role, file, task, folder, **variables):
    """Run a task's shell with its places below a folder."""
    tasks = yaml.safe_load((PLAYBOOKS / "roles" / role / "tasks" / file).read_text())
    (found,) = (each for each in tasks if each["name"] == task)
    shell = found["ansible.builtin.shell"]
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["quote"] = shlex.quote
    text = shell if isinstance(shell, str) else shell["cmd"]
    variables = {"testbed_before": folder / "before", "ansible_check_mode": False, **variables}
    note = yaml.safe_load((PLAYBOOKS / "group_vars/all.yml").read_text())["testbed_note"]
    variables["testbed_note"] = environment.from_string(note).render(variables)
    script = (
        environment.from_string(text)
        .render(variables)
        .replace("/etc/", f"{folder}/etc/")
        .replace("/run/", f"{folder}/run/")
    )
    path = f"{folder}/bin:{os.environ['PATH']}"
    return subprocess.run(["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    for name in ("before", "bin", "etc/chrony", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/chrony/chrony.conf").write_text("pool before\n" * 1000)
    for name, answer in ANSWERS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def full(folder):
    """Make the folder of the notes a full file system."""
    before = folder / "before"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "disk", before], check=True)
    with (before / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 12))
    yield before
    subprocess.run(["umount", before], check=True)


NOTES = [
    ("sysctl", "main.yml", "Note the previous values, and read the present ones", "sysctl.conf"),
    ("base", "service_before.yml", "Note the previous state of a service", "chrony.service"),
    ("chrony", "main.yml", "Note whether another program sets the clock", "chrony"),
    ("chrony", "main.yml", "Keep the previous configuration", "chrony.conf"),
]
VALUES = {"base_service": "chrony", "base_noted": "", "sysctl_keys": "net.ipv4.tcp_rmem"}


@pytest.mark.parametrize(("role", "file", "task", "note"), NOTES, ids=[note for *_, note in NOTES])
def test_a_note_is_kept(folder, role, file, task, note):
    done = run(role, file, task, folder, **VALUES)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (folder / "before").iterdir()] == [note]
    assert (folder / "before" / note).read_text().startswith(("active\n", "net.ipv4.tcp_rmem", "pool before\n"))


@pytest.mark.root
@pytest.mark.parametrize(("role", "file", "task", "note"), NOTES, ids=[note for *_, note in NOTES])
def test_a_note_that_has_no_room_is_an_error_and_not_half_there(folder, full, role, file, task, note):
    done = run(role, file, task, folder, **VALUES)
    assert done.returncode != 0
    assert not (full / note).exists()


def test_a_service_that_does_not_stop_is_an_error_and_tried_again(folder):
    note = folder / "before" / "nfs-server.service"
    note.write_text("inactive\ndisabled\n")
    values = {"base_service": "nfs-server", "base_noted": note}
    assert run("base", "service_back.yml", "Put the previous state of a service back", folder, **values).returncode
    assert note.exists()


def test_a_delay_that_cannot_be_set_or_taken_away_is_an_error(folder):
    (folder / "before" / "netem").write_text("lo\n")
    values = {"joulefeed_data_interface": "lo", "netem_wanted": "delay 15ms"}
    done = run("netem", "main.yml", "Set the regime", folder, **values)
    assert done.returncode and "refused" in done.stderr
    assert (folder / "run/joulefeed-netem").read_text() == ""
    done = run("netem", "teardown.yml", "Take the delay away", folder)
    assert done.returncode and "refused" in done.stderr
    assert (folder / "before" / "netem").exists()
