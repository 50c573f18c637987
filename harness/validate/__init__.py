"""Judges a results folder again from its raw files, and says what it states otherwise."""
