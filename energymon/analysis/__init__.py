"""Energy of windows from readings."""
