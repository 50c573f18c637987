"""Packages that the base of this project leaves out, and the extras that bring them."""

from __future__ import annotations

from typing import Final

EXTRAS: Final = {
    **dict.fromkeys(("torch", "torchvision", "nibabel", "soundfile"), "torch"),
    "nvidia": "dali",
    **dict.fromkeys(("spdl", "obstore"), "spdl"),
    **dict.fromkeys(("zmq", "msgpack", "fastcrc"), "streaming"),
    "cassandra": "nosql",
    "prometheus_client": "prometheus",
}
"""The extra of each package, by the name that is imported."""


def remedy(error: BaseException) -> str:
    """Return how to get what an import did not find, to be put behind the error; empty where no extra brings it."""
    extra = EXTRAS.get(str(getattr(error, "name", "")).partition(".")[0])
    return f"; pip install 'joulefeed[{extra}]' brings it" if extra and isinstance(error, ModuleNotFoundError) else ""
