"""Samples as TFRecord records: shards of them, the order in which they are read, and what decodes them."""
