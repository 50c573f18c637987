"""The compute node's end: sessions with daemons, and batches under way."""
