"""The client of the database: its connections, its sessions, the rows of an epoch under way."""
