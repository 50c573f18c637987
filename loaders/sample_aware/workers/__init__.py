"""Worker processes, and what they do to a sample."""
