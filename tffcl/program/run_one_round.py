"""One training round from exported files with TensorFlow Federated alone: python run_one_round.py"""

import pathlib
import signal

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2, executor_pb2

signal.signal(signal.SIGINT, signal.default_int_handler)  # TFF ends its worker by this signal, which background jobs ignore
HERE = pathlib.Path(__file__).resolve().parent


def computation(name):
    proto = computation_pb2.Computation.FromString((HERE / "computations" / name / "computation.pb").read_bytes())
    return tff.framework.deserialize_computation(proto)


def value(name, type_spec):
    return tff.framework.deserialize_value(executor_pb2.Value.FromString((HERE / name).read_bytes()), type_spec)[0]


training = computation("training")
kind = training.type_signature.parameter
print(f"a round is {training.type_signature}")

# The clients' inputs are random images here. A deployment gives its own examples, in structures of the same type.
state, clients = value("check/training.input.pb", kind)
state = value("state/trained.pb", kind[0])  # instead of the state that the check starts from

before = np.asarray(state["models"])
state, reports = training(state, clients)
after = np.asarray(state["models"])
print(f"{len(clients)} clients moved {len(after)} models by {np.abs(after - before).max():.4f} at most")

tff.backends.native.set_sync_local_cpp_execution_context()  # drops the context that was used, which ends its worker
