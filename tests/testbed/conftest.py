"""Ansible for the tests that need it."""

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ansible():
    """The environment with Ansible, found or made."""
    made = subprocess.run([REPO / "playbooks" / "ansible.sh"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
