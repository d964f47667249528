"""Real data sets and their partitions: who holds what.

`federated.load_federated` does all of it; `catalog` has the names; `core` the types. A loader (`loaders/`)
reads one data set, a partition (`partitions/`) says which client holds which of its examples. Before that,
`preparation` sets images aside for methods whose server has some of its own (`server_examples`). Images stay
uint8 everywhere: normalising with `mean` and `std` is the computation's work, so that signatures may see raw
pixels as well.
"""
