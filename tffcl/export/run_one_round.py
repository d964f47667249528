"""One training round from exported files with TensorFlow Federated alone: python run_one_round.py"""
# TFF starts a worker for it. While this runs, it listens on all addresses of this machine and runs what it is sent.

import os
import pathlib
import signal

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2, executor_pb2

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("no_grpc_proxy", "localhost")  # or TFF would reach its worker through an HTTP proxy


def value(name, type_spec):
    return tff.framework.deserialize_value(executor_pb2.Value.FromString((HERE / name).read_bytes()), type_spec)[0]


def main():
    name = next(each for each in ("training", "training_with_kept") if (HERE / "computations" / each).is_dir())
    proto = (HERE / "computations" / name / "computation.pb").read_bytes()
    training = tff.framework.deserialize_computation(computation_pb2.Computation.FromString(proto))
    kind = training.type_signature.parameter
    if b"federated_secure" in proto:  # only TFF's context for tests runs these on one machine, in the open
        tff.backends.test.set_sync_test_cpp_execution_context()
    print(f"a round is {training.type_signature}")
    # The clients' inputs are random images here. A deployment gives its own examples, in structures of the same type.
    state, clients = value(f"check/{name}.input.pb", kind)
    state = value("state/trained.pb", kind[0]) if (HERE / "state" / "trained.pb").is_file() else state
    after, _, *kept = training(state, clients)
    told = f"{len(clients)} client{'s' * (len(clients) != 1)}"
    print(*(f"{told} kept values for their next round\n" for _ in kept), end="")
    if "models" in dir(kind[0].member):
        before, trained = np.asarray(state["models"]), np.asarray(after["models"])
        moved = f" by {np.abs(trained - before).max():.4f} at most" if trained.shape == before.shape else ""
        print(f"{told} moved {len(trained)} model{'s' * (len(trained) != 1)}{moved}")
        if moved and np.array_equal(trained, before) and "difference=" not in str(training.type_signature.result[1]):
            print("nothing moved: a private mean leaves a model as it is where the noisy number of clients is small")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # TFF ends its worker by SIGINT; background jobs ignore it
    try:
        main()
    finally:
        tff.backends.native.set_sync_local_cpp_execution_context()  # drops the earlier context, which ends its worker
