"""Decord's VideoLoader over files."""

from loaders.decord.loader import DecordLoader

__all__ = ["DecordLoader"]
