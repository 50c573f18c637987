"""Folders of TFRecord shards: written, indexed and verified."""
