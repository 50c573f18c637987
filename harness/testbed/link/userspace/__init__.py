"""The delay line in user space: a process that carries packets between two TUN devices."""
