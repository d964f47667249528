"""The run: tasks, sampling, rounds, evaluation, traffic, checkpoints, metrics, progress."""
