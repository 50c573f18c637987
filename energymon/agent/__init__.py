"""The process that samples, and windows of programs beside it."""
