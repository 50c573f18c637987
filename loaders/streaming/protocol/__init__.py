"""What client and daemon say to one another, and how it is sealed."""
