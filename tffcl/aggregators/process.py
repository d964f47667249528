"""Builds the `tff.templates.AggregationProcess` of a factory from its computations."""

from collections.abc import Callable

import tensorflow_federated as tff


def aggregation_process(
    first: tff.Computation | None, step: Callable, value_type: tff.Type, weight_type: tff.Type | None = None
) -> tff.templates.AggregationProcess:
    """Builds the process of an aggregation.

    Args:
      first: Gives the first state, at the server or without a placement; None for processes that have no state.
      step: `(state, value[, weight]) -> tff.templates.MeasuredProcessOutput`, of federated values.
      value_type: Of a client's value.
      weight_type: Of its weight; None where clients have none.
    """

    @tff.federated_computation
    def initialize():
        if first is None:
            return tff.federated_value((), tff.SERVER)
        placed = isinstance(first.type_signature.result, tff.FederatedType)
        return first() if placed else tff.federated_eval(first, tff.SERVER)

    state_type, uploaded = initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    if weight_type is None:

        @tff.federated_computation(state_type, uploaded)
        def next_fn(state, value):
            return step(state, value)
    else:

        @tff.federated_computation(state_type, uploaded, tff.FederatedType(weight_type, tff.CLIENTS))
        def next_fn(state, value, weight):
            return step(state, value, weight)

    return tff.templates.AggregationProcess(initialize, next_fn)
