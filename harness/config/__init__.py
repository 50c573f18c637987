"""What an experiment asks for: the composed configuration as checked data."""
