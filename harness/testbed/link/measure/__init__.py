"""Measures a link: round trip, rate, jitter and loss, before, during and after its use."""
