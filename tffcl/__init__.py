"""tffcl: clustered federated learning on TensorFlow Federated.

import tffcl
config = tffcl.resolve("demo_digits", "pacfl")
result = tffcl.run(config, "runs/first")
"""

import os

from tffcl.public_names import lazily

# TensorFlow would fill a notebook's cells with what it found on the machine; set to 0, it does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_PLACES = {
    "algorithms": "tffcl.algorithms",
    "learning": "tffcl.learning",
    "resolve": "tffcl.experiments.config",
    "load_task": "tffcl.experiments.tasks",
    "load_data": "tffcl.experiments.prepare",
    "measure_similarity": "tffcl.experiments.similarity",
    "train": "tffcl.runner.train",
    "run": "tffcl.experiments.run",
    "compare": "tffcl.experiments.compare",
    "load_run": "tffcl.experiments.finished",
    "join_newcomers": "tffcl.experiments.joining",
    "export_result": "tffcl.export.export_run",
    "find_runs": "tffcl.reporting.files",
    "write_report": "tffcl.reporting.report",
    "use_local_worker": "tffcl.runtime",
    "use_workers": "tffcl.runtime.remote_workers",
    "aggregation": "tffcl.aggregators.by_name",
    "PrivacySettings": "tffcl.runner.privacy",
    "RemoteWorkers": "tffcl.runtime",
    "Population": "tffcl.clients.population",
    "FlatModel": "tffcl.models.flat",
    "LocalTraining": "tffcl.client_work.local_sgd",
    "Dataset": "tffcl.datasets.core",
    "Partition": "tffcl.datasets.core",
    "UserError": "tffcl.errors",
}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
