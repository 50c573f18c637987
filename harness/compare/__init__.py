"""Whether a side of a comparison is slower than another one, judged from results folders."""
