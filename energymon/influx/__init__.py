"""InfluxDB: its line protocol, its client, what remains to be sent, and reading energy back."""
