"""Words from no domain."""
