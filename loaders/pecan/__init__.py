"""AutoOrder over PyTorch's DataLoader, and the heuristic of sizes, as the MinatoLoader paper compares with them."""

from loaders.pecan.balanced import SizeBalancedLoader
from loaders.pecan.loader import PecanLoader
from loaders.pecan.order import Kind, Placed, Reordered, TransformOrder, auto_order, reorder

__all__ = [
    "Kind",
    "PecanLoader",
    "Placed",
    "Reordered",
    "SizeBalancedLoader",
    "TransformOrder",
    "auto_order",
    "reorder",
]
