"""The DataLoader of PyTorch."""

from loaders.pytorch.loader import PyTorchLoader

__all__ = ["PyTorchLoader"]
