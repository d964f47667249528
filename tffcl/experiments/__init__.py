"""Task files to objects, and what is done with several runs: configuration, comparisons, sweeps, similarity."""
