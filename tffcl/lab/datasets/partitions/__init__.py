"""Rules that decide which client holds which examples: `<rule>(dataset, *, seed, <options>) -> Partition`.

They use labels, owners, sources and attributes, but not pixels, and depend only on these and on the seed.
"""
