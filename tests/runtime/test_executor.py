"""What is sent to a worker is what TFF would send."""

import collections

import ml_dtypes
import numpy as np
import pytest
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tffcl.runtime.executor import WorkerExecutor

MANY = np.arange(3000, dtype=np.float32).reshape(100, 30)
STRUCT = tff.to_type(
    collections.OrderedDict(
        a=tff.TensorType(np.int32, [None]), b=(np.float32, tff.TensorType(np.float32, [None, 30])), c=np.str_, d=()
    )
)
VALUE = collections.OrderedDict(a=np.arange(2000, dtype=np.int32), b=(1.5, MANY), c=b"x", d=())
ROWS = tff.TensorType(np.float32, [None, 30])


class Stub:
    """Keeps what it is asked for."""

    def get_executor(self, request):
        return executor_pb2.GetExecutorResponse(executor=executor_pb2.ExecutorId(id="1"))

    def create_value(self, request):
        self.request = request
        return executor_pb2.CreateValueResponse(value_ref=executor_pb2.ValueRef(id="2"))

    def dispose(self, request):
        del request

    dispose_executor = dispose


def sent(executor_class, value, kind):
    """The bytes of the message by which an executor creates a value."""
    stub = Stub()
    executor = executor_class(stub)
    executor.set_cardinalities({tff.CLIENTS: 2})
    with pytest.raises(StopIteration):
        executor.create_value(value, kind).send(None)
    return stub.request.SerializeToString()


@pytest.mark.parametrize(
    ("value", "member", "placement"),
    [
        ([VALUE, VALUE], STRUCT, tff.CLIENTS),
        (VALUE, STRUCT, tff.SERVER),
        ([], STRUCT, tff.CLIENTS),
        (MANY[::2], ROWS, tff.SERVER),
        (np.asfortranarray(MANY), ROWS, tff.SERVER),
        (np.ones(3000, bool), tff.TensorType(np.bool_, [3000]), tff.SERVER),
        (np.ones(3000, ml_dtypes.bfloat16), tff.TensorType(ml_dtypes.bfloat16, [None]), tff.SERVER),
        (np.array(["a", "b"] * 300, object), tff.TensorType(np.str_, [None]), tff.SERVER),
        (MANY.astype(np.float16), ROWS, tff.SERVER),  # which becomes float32
        (MANY.astype(">f4"), ROWS, tff.SERVER),  # as of a file that was written in the order of bytes of a network
    ],
)
def test_messages_are_those_of_tff(value, member, placement):
    kind = tff.FederatedType(member, placement)
    assert sent(WorkerExecutor, value, kind) == sent(tff.framework.RemoteExecutor, value, kind)


@pytest.mark.parametrize("value", [MANY[:, :9], MANY.astype(np.float64), MANY.astype(str)])
def test_values_of_other_types_are_refused(value):
    with pytest.raises(TypeError, match="Failed to serialize a value"):
        sent(WorkerExecutor, value, tff.FederatedType(ROWS, tff.SERVER))
