"""The cells of a run from outside: their processes, their data, their records."""
