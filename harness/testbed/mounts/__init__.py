"""Mounts of a directory of one node on another one."""
