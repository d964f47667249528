"""TFF's executor over a worker, with messages that are built in place. Imports TFF."""

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.python.core.impl.executors.remote_executor import RemoteValue

_LARGE = 1024  # bytes of an array


class WorkerExecutor(tff.framework.RemoteExecutor):
    """`tff.framework.RemoteExecutor` that sends the same bytes and copies them less often.

    TFF builds the message of a federated value from the inside out, and copies the examples of all clients twice for
    each level: twelve copies of up to tens of megabytes, while the worker waits. An executor must return a
    `RemoteValue`, for which TFF, whose version is pinned, has no public name.
    """

    async def create_value(self, value, type_spec=None):
        """See `tff.framework.RemoteExecutor`."""
        if not isinstance(type_spec, tff.FederatedType):
            return await super().create_value(value, type_spec)
        request = executor_pb2.CreateValueRequest(executor=self._executor_id)
        _put(request.value, value, type_spec)
        return RemoteValue(self._stub.create_value(request).value_ref, type_spec, self)


def _put(message: executor_pb2.Value, value, kind: tff.Type):
    """Puts a value of a type into an empty message."""
    if isinstance(kind, tff.FederatedType):
        for each in [value] if kind.all_equal else value:
            _put(message.federated.value.add(), each, kind.member)
        of_nobody = tff.framework.serialize_value([], tff.FederatedType(kind.member, kind.placement, all_equal=False))
        message.federated.type.CopyFrom(of_nobody[0].federated.type)
        message.federated.type.all_equal = kind.all_equal
    elif isinstance(kind, tff.StructType):
        message.struct.SetInParent()  # even if it has no elements
        elements = tff.structure.iter_elements(tff.structure.from_container(value))
        for (name, own), (_, each) in zip(tff.structure.iter_elements(kind), elements, strict=True):
            # In TFF's protocol, an element without a name has no name field.
            element = message.struct.element.add(**({"name": name} if name else {}))
            _put(element.value, each, own)
    elif isinstance(value, np.ndarray) and value.nbytes > _LARGE and _is_of(value, kind):
        nothing = tff.TensorType(kind.dtype, [0])
        message.CopyFrom(tff.framework.serialize_value(np.zeros(0, value.dtype), nothing)[0])
        message.array.shape.dim[:] = value.shape
        message.array.content = value.tobytes()
    else:
        message.CopyFrom(tff.framework.serialize_value(value, kind)[0])


def _is_of(value: np.ndarray, kind: tff.Type) -> bool:
    """Whether an array has numbers of exactly this type, in this machine's byte order; TFF converts or refuses all
    others."""
    numbers = isinstance(kind, tff.TensorType) and value.dtype.kind in "biuf" and value.dtype.isnative
    return numbers and kind.is_assignable_from(tff.TensorType(value.dtype.type, value.shape))
