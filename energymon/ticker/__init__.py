"""Compiled code that takes ticks."""
