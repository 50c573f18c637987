"""The daemon of a loader that is streamed to: its command, and what its server program needs."""
