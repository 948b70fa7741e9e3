"""What a store promises: operations and guarantees, in no store's own words."""
