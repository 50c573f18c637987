"""The project's version, which stands once, in pyproject.toml, and the extras that bring what its base leaves out."""

from __future__ import annotations

import argparse
from typing import Any, Final

EXTRAS: Final = {
    **dict.fromkeys(("torch", "torchvision", "fastcrc", "nibabel", "soundfile"), "torch"),
    "nvidia": "dali",
    **dict.fromkeys(("spdl", "obstore"), "spdl"),
    **dict.fromkeys(("zmq", "msgpack"), "streaming"),
    "cassandra": "nosql",
    "decord": "decord",
    "ansible_runner": "cluster",
    "influxdb_client": "influx",
    "prometheus_client": "prometheus",
}


def version_text() -> str:
    """Return the project's name and version."""
    from importlib.metadata import version

    return f"joulefeed {version('joulefeed')}"


class PrintVersion(argparse.Action):
    """The action of `--version`: prints the version and exits; reads it only then."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print joulefeed's version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and end the program."""
        print(version_text())
        parser.exit()


def remedy(error: BaseException) -> str:
    """Return how to get what an import did not find, to be put behind the error; empty where no extra brings it."""
    extra = EXTRAS.get(str(getattr(error, "name", "")).partition(".")[0])
    return f"; pip install 'joulefeed[{extra}]' brings it" if extra and isinstance(error, ModuleNotFoundError) else ""
