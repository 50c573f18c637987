"""The daemon on a storage node."""
