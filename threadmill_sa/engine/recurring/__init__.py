"""Turning fires and nudges into jobs."""
