"""What the processes share: messages on pipes, the arena of shared memory, and what lies in it."""
