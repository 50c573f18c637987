"""InfluxDB: its line protocol, its client, and what remains to be sent."""
