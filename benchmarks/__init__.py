"""Benchmarks: our classifiers and others on the same data, in the same run."""
