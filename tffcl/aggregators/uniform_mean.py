"""The mean over all clients in which each of them counts the same."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class UniformMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """TFF's mean with a weight of 1 for every client whose weight is above 0, and of 0 for the others.

    `tff.aggregators.UnweightedMeanFactory` counts also those whose training was not finite, which clients tell by a weight of
    0. Where nobody has any weight the mean is zero.
    """

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process; types and errors as of `tff.aggregators.MeanFactory`."""
        inner = tff.aggregators.MeanFactory(no_nan_division=True).create(value_type, tff.TensorType(np.float32))

        @tff.tensorflow.computation(weight_type)
        def one_or_nothing(weight):
            return tf.cast(weight > 0, tf.float32)

        @tff.federated_computation(
            inner.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            return inner.next(state, value, tff.federated_map(one_or_nothing, weight))

        return tff.templates.AggregationProcess(inner.initialize, next_fn)
