"""The sample-aware loader of the MinatoLoader paper, as a loader of files and as torch's DataLoader."""

from loaders.sample_aware.dataloader import SampleAwareDataLoader
from loaders.sample_aware.loader import SampleAwareLoader

__all__ = ["SampleAwareDataLoader", "SampleAwareLoader"]
