"""The harness's typed errors; every message says what, where, the expected value and what to do."""

from __future__ import annotations

INVALID_ROWS = 6
"""Exit status where every cell is done, and no row of some loader and regime is valid."""
BROKEN_FIGURE = 7
"""Exit status where a figure cannot be drawn; the rest of the report is."""
DIFFERS = 8
"""Exit status where a results folder states something else than what its raw files contain."""


class HarnessError(Exception):
    """Base of every error that the harness raises on purpose."""

    exit_status = 2


class ConfigError(HarnessError):
    """A config value is wrong; refused before anything starts."""


class DatasetError(HarnessError):
    """The dataset's root, a file of it or its shards cannot be used."""


class DiskError(HarnessError):
    """A folder that the user chose cannot be written, or its disk is full."""

    exit_status = 5


class TestbedError(HarnessError):
    """A node, a link or a permission that the testbed needs is missing or failed."""

    __test__ = False
    exit_status = 4


class MountError(TestbedError):
    """The remote mount could not be made or broke."""


class CellError(HarnessError):
    """A cell ended without a result."""

    exit_status = 3


class MemoryLimitError(CellError):
    """A cell or its daemons need more memory than memory_mb leaves them."""


class ResultsError(HarnessError):
    """A results folder is missing, incomplete or belongs to another config."""
