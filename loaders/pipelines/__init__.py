"""The pipelines of the workloads: reading, decoding, transforms and collation of their samples."""
