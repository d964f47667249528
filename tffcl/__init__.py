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
    "parts": "tffcl.parts",
    "resolve": "tffcl.lab.tasks.resolve",
    "load_task": "tffcl.lab.tasks.task_file",
    "load_data": "tffcl.lab.tasks.build",
    "similarity": "tffcl.lab.batches.similarity",
    "train": "tffcl.runs.train",
    "run": "tffcl.lab.batches.run",
    "compare": "tffcl.lab.batches.compare",
    "sweep": "tffcl.lab.batches.sweep",
    "search": "tffcl.lab.batches.search",
    "load_run": "tffcl.lab.tasks.load_run",
    "join_newcomers": "tffcl.lab.batches.newcomers",
    "export_result": "tffcl.export.writer",
    "find_runs": "tffcl.lab.reporting.files",
    "write_report": "tffcl.lab.reporting.report",
    "use_local_worker": "tffcl.runtime",
    "use_workers": "tffcl.runtime.remote_workers",
    "aggregation": "tffcl.registry",
    "PrivacySettings": "tffcl.runs.privacy",
    "Callback": "tffcl.runs.callbacks",
    "EarlyStopping": "tffcl.runs.callbacks",
    "RemoteWorkers": "tffcl.runtime",
    "Population": "tffcl.clients.population",
    "FlatModel": "tffcl.models.flat",
    "LearningRateDecay": "tffcl.client_work.local_training",
    "LocalTraining": "tffcl.client_work.local_training",
    "Dataset": "tffcl.lab.datasets.core",
    "Partition": "tffcl.lab.datasets.core",
    "UserError": "tffcl.errors",
}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
