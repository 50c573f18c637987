"""The experiment, from config to report."""
