"""Parts that all packages of the project share: compiled C, child processes."""
