"""Rules of who holds what: `<rule>(dataset, *, seed, <options>) -> Partition`.

They look at labels, owners, sources and attributes, never at pixels, and are functions of these and of the
seed.
"""
