"""COCO 2017: a generator of its layout, and the adapter of a real tree."""

from harness.datasets.coco.generated import CocoLike
from harness.datasets.coco.tree import CocoTree

__all__ = ["CocoLike", "CocoTree"]
