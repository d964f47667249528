"""One run: its rounds, its directory and checkpoints, evaluation, the ledger of privacy, the result."""
