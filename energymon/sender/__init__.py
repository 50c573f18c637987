"""The process that sends what a store holds to InfluxDB."""
