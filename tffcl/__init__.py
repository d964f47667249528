"""tffcl: clustered federated learning on TensorFlow Federated.

import tffcl
config = tffcl.resolve("demo_digits", "pacfl")
result = tffcl.run(config, "runs/first")
"""

import importlib
import os

# TensorFlow would fill a notebook's cells with what it found on the machine; set to 0, it does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_PUBLIC = {
    "resolve": "tffcl.experiments.config",
    "load_task": "tffcl.experiments.tasks",
    "load_data": "tffcl.experiments.prepare",
    "measure_similarity": "tffcl.experiments.similarity",
    "train": "tffcl.runner.train",
    "run": "tffcl.experiments.run",
    "compare": "tffcl.experiments.compare",
    "load_run": "tffcl.experiments.finished",
    "join_newcomers": "tffcl.experiments.joining",
    "find_runs": "tffcl.reporting.files",
    "write_report": "tffcl.reporting.report",
    "use_local_worker": "tffcl.runtime",
    "use_workers": "tffcl.runtime.remote_workers",
    "RemoteWorkers": "tffcl.runtime",
    "Population": "tffcl.clients.population",
    "FlatModel": "tffcl.models.flat",
    "LocalTraining": "tffcl.client_work.local_sgd",
    "UserError": "tffcl.errors",
}

__all__ = list(_PUBLIC)


def __dir__():
    return sorted({*globals(), *__all__})


def __getattr__(name):
    # Lazily, so that `tffcl --help` and `tffcl list` do not wait for TensorFlow.
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tffcl' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
