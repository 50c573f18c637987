"""A run from outside its cells: datasets, testbed, agent, cells, rows."""
