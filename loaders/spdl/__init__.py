"""SPDL's pipeline over files."""

from loaders.spdl.loader import SpdlLoader

__all__ = ["SpdlLoader"]
