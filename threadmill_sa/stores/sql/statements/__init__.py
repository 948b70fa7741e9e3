"""Statements as values: pure builders of Core constructs. Another module executes them."""
