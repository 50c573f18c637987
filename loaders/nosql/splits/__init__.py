"""Training, validation and test splits of a dataset, made of its metadata (Cassandra-DALI paper, section 3.2)."""

from loaders.nosql.splits.generator import Splits, make_splits
from loaders.nosql.splits.metadata import Metadata, read_metadata
from loaders.nosql.splits.storage import load_report, load_split, save_splits

__all__ = ["Metadata", "Splits", "load_report", "load_split", "make_splits", "read_metadata", "save_splits"]
