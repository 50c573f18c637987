"""What is done to the samples of each workload: reading, decoding, transforms and collation."""
