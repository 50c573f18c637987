"""Shards in an object store: uploaded, and served through a cache on the daemon's disk."""
