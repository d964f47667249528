"""tffcl: clustered federated learning on TensorFlow Federated.

import tffcl
config = tffcl.resolve("demo_digits", "pacfl")
result = tffcl.run(config, "runs/first")
"""

import os

from tffcl.public_names import lazily

# TensorFlow would fill a notebook's cells with what it found on the machine; set to 0, it does.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Unless it is told one or the other, gRPC prepares half of what it needs to go on in a forked process, and such a
# process, as DataLoaders and joblib make them, now and then hangs or crashes before its first line.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
