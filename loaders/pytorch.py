"""PyTorch's DataLoader over files: worker processes that read, decode and transform samples."""

from __future__ import annotations

from typing import Any

from loaders.base import Samples
from loaders.options import takes_options
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.torch_loader import TorchLoader, TorchOptions


class PyTorchLoader(TorchLoader):
    """Reads files with `torch.utils.data.DataLoader` and its worker processes."""

    @takes_options(TorchOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        With on_error "skip" a batch of which every sample failed is left out too.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        super().__init__(samples, as_pipeline(transform), TorchOptions(**keywords))
