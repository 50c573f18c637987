"""PyTorch's DataLoader over files."""

from loaders.pytorch.loader import PyTorchLoader

__all__ = ["PyTorchLoader"]
