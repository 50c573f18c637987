"""Which loader and settings to use: head-room, ranked configurations, predicted seconds and joules."""
