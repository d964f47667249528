"""Clients: populations, cohorts, sampling, and what a client keeps between rounds."""
