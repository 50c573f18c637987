"""A run on several hosts: driven from a controller, led by one of them."""
