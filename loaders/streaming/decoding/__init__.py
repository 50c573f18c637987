"""From raw batches to tensors: engines, and the way to a GPU."""
