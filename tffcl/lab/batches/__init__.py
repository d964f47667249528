"""Several runs: comparisons, sweeps, searches and studies; newcomers; and looks at the data without training."""
