"""Real data sets and their partitions, which decide which client holds which examples.

`federated.load_federated` does all of it; `catalog` has the names and `core` the types. A loader (`loaders/`) reads one
data set. A partition (`partitions/`) decides which client holds which of its examples. Before the partition,
`preparation` sets images aside for methods whose server needs some (`server_examples`). Images stay uint8 everywhere:
the computations normalise with `mean` and `std`, so that signatures can also use raw pixels.
"""
