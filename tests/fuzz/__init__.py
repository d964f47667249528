"""Inputs that a seeded generator has damaged: each gets one line and exit code 2."""
