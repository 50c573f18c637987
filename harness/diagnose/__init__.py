"""Which stage starves the accelerator, and what to change: `python -m harness.diagnose`."""
