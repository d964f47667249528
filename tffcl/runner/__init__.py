"""The loop over objects: rounds, evaluation, checkpoints, newcomers, the files of a run. Knows no task file."""
