"""A cell from inside: loader, steps, events, and what it uses."""
