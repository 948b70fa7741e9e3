"""Stores: one contract (`threadmill_sa.spi`), implementations that never see each other."""
