"""What is read: made-up datasets, and adapters of real ones."""

from harness.datasets.handle import DatasetHandle, Progress

__all__ = ["DatasetHandle", "Progress"]
