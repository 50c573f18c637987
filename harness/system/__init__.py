"""The operating system: signals, disks, processes, what the kernel counts."""
