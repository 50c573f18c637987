"""The drop-in for torch's DataLoader."""
