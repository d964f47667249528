"""Several runs: comparisons, sweeps, searches and studies. Also newcomers, and views of the data without training."""
