"""Running jobs: handlers, attempts and the loops of a node."""
