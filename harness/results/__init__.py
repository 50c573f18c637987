"""What a run stores, and rows, metrics and verdicts made of it."""
