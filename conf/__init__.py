"""The Hydra config groups of joulefeed, shipped as package data."""
