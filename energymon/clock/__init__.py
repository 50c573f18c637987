"""The clock of readings, its offset to the wall clock, and to those of other hosts."""
