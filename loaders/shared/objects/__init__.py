"""S3-compatible object stores: their addresses and keys, and a server for tests and experiments."""
