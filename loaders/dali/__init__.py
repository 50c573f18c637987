"""NVIDIA DALI over files."""

from loaders.dali.loader import DaliLoader

__all__ = ["DaliLoader"]
