"""A Cassandra server of this machine: found, configured, started and ended."""
