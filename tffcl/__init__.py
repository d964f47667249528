"""tffcl: clustered federated learning on TensorFlow Federated.

import tffcl
config = tffcl.resolve("demo_digits", "pacfl")
result = tffcl.run(config, "runs/first")
"""

import os

from tffcl.public_names import lazily

# TensorFlow would fill a notebook's cells with what it found on the machine; set to 0, it does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
