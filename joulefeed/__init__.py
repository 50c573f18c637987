"""What energymon, loaders and harness share: processes, signals, compiled C; it imports none of them."""
