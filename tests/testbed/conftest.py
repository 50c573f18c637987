"""Ansible for the tests that need it."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@dataclass
class Steps:
    """What a user would see of a playbook."""

    notes: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    def follow(self, what, done, total=None, detail=""):
        self.steps.append(detail)

    def note(self, text):
        assert "\n" not in text
        self.notes.append(text)


@pytest.fixture(scope="session")
def ansible():
    """The environment with Ansible, found or made."""
    made = subprocess.run([REPO / "playbooks" / "ansible.sh"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
