"""tffcl: clustered federated learning on TensorFlow Federated.

import tffcl
config = tffcl.resolve("demo_digits", "pacfl")
result = tffcl.run(config, "runs/first")
"""

import os

from tffcl.public_names import lazily

# TensorFlow would fill a notebook's cells with messages about the machine; a user who sets 0 sees them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# If this is not set, gRPC prepares only half of what it needs to go on in a forked process. Such a process, as
# DataLoaders and joblib make them, then sometimes hangs or crashes before its first line.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
