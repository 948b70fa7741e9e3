"""Benchmarks: one question per file, ratios from one interleaved run."""
