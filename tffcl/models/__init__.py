"""Models by name, each a `FlatModel`: a `tff.learning` FunctionalModel whose parameters are one vector."""
