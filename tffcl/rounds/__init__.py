"""One composer of federated rounds, and what follows from its types: traffic, exported forms, sums, blocks."""
