"""Computations, states and models of a run as files for a TFF deployment, and back."""
