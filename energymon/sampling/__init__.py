"""Samples taken on the grid of ticks, and written to the store."""
