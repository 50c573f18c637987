"""What client and daemon say to one another."""
