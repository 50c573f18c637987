"""InfluxDB: its line protocol, its client, what is still to be sent, and reading energy back."""
