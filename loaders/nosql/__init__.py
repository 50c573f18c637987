"""Loading from a Cassandra-compatible database."""
