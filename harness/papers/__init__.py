"""The figures and tables of five papers: which command makes each, the run of all of them, and the scorecard."""
