"""The thread that keeps all workers at work, and what becomes of an epoch."""
