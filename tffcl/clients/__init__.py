"""Who there is and who takes part: populations, cohorts, sampling, what a client keeps between rounds."""
