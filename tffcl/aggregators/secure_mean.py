"""The weighted mean per cluster by secure sums: the server learns the sums of all clusters, but no client's upload."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import check_types
from tffcl.aggregators.contract import FactoryTraits, traits
from tffcl.aggregators.parameters import SecureSumParameters
from tffcl.aggregators.per_cluster import PerClusterFactory, aggregation_process, by_row, counting_alike, secure_sums


class SecureClusteredMeanFactory(PerClusterFactory):
    """`tff.aggregators.WeightedAggregationFactory` for means keyed by cluster ID, of which the server sees only sums.

    The created process has the same arguments and results as that of `ClusteredMeanFactory`. Every client uploads a row
    for each cluster, in whole numbers, so that its cluster is hidden, too, at K times the bytes of a plain mean. A mean
    is off by less than `bound · 2⁻³⁰ · largest_weight / (mean weight of the members)` in every coordinate, besides the
    rounding of float32 and the clipping to `bound`; if all clients count the same, both weights are 1.

    The sum of a cluster with one member is that member's update. So a cluster in which fewer than `min_cluster_size`
    clients with a weight above 0 take part waits: its row is exactly zero, and so are its measurements. This is applied
    to the sums, after the server's software has received them; a single secure sum cannot do better, as a server could
    always add a client of its own. Therefore the engine of clustered training, which knows the clusters, does not ask
    the clients of a cluster that waits, and a deployment of an exported round must leave them out, too.

    The only aggregation is `tff.federated_secure_sum_bitwidth`, so a round has a MapReduceForm, and without clients'
    reports (`rounds.composer.compose`) a DistributeAggregateForm. Further uploads of a method (SCAFFOLD's control
    variates, FedNova's steps) are summed securely, too, see `beside`.
    """

    hides_uploads, sends_weight = True, False

    def __init__(self, how: SecureSumParameters = SecureSumParameters(), *, num_clusters: int | None = None):
        """Makes the factory.

        Args:
          how: Its bounds.
          num_clusters: K; if not given, the method that uses the factory sets it.
        """
        super().__init__(num_clusters, how)
        self._how = how

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value `<key=int32,value=T>` and its weight, without masks."""
        return integer_rows(value_type["value"], self._clusters())

    @property
    def members_needed(self) -> int:
        """The lowest number of members of a cluster in a round."""
        return self._how.min_cluster_size

    def with_equal_weights(self) -> "SecureClusteredMeanFactory":
        """Returns the factory for equal weights, without dividing the range of whole numbers by `largest_weight`."""
        return SecureClusteredMeanFactory(
            dataclasses.replace(self._how, largest_weight=1.0), num_clusters=self.num_clusters
        )

    def clipped(self, value):
        """Returns a client's value with all coordinates within the bound."""
        return tf.clip_by_value(value, -self._how.bound, self._how.bound)

    def beside(self, plain: tff.aggregators.AggregationFactory, bound: float | None = None):
        """Returns secure sums for another keyed upload; see `FactoryTraits.beside`."""
        how = self._how if bound is None else dataclasses.replace(self._how, bound=bound)
        kind = UniformSecureClusteredMeanFactory if traits(plain).is_uniform else SecureClusteredMeanFactory
        return kind(how, num_clusters=self.num_clusters)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        how, sums = self._how, secure_sums(value_type, tff.TensorType(np.float32), self._clusters())

        @tff.tensorflow.computation(value_type)
        def scale(upload):
            def scaled(leaf):
                return leaf / tf.cast(how.bound, leaf.dtype)

            return collections.OrderedDict(key=upload["key"], value=tf.nest.map_structure(scaled, upload["value"]))

        @tff.tensorflow.computation(weight_type)
        def scale_weight(weight):
            return tf.cast(weight, tf.float32) / how.largest_weight

        def enough(found):
            return tf.cast(found["clients"] > how.min_cluster_size - 0.5, tf.float32)

        @tff.tensorflow.computation(sums.next.type_signature.result.result.member)
        def divide(found):
            shown = enough(found)

            def mean(total):
                mean = tf.math.divide_no_nan(total, by_row(found["weight"], total)) * how.bound
                return tf.ensure_shape(mean * by_row(shown, total), total.shape)

            return tf.nest.map_structure(mean, found["value"])

        @tff.tensorflow.computation(sums.next.type_signature.result.result.member)
        def measure(found):
            shown = enough(found)
            clients = tf.cast(tf.round(found["clients"] * shown), tf.int32)
            return collections.OrderedDict(weight=found["weight"] * how.largest_weight * shown, clients=clients)

        def step(state, value, weight):
            found = sums.next(state, tff.federated_map(scale, value), tff.federated_map(scale_weight, weight))
            means, measured = tff.federated_map(divide, found.result), tff.federated_map(measure, found.result)
            return tff.templates.MeasuredProcessOutput(found.state, means, measured)

        return aggregation_process(sums.initialize, step, value_type, weight_type)


class UniformSecureClusteredMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`SecureClusteredMeanFactory` in which every client with a weight above 0 counts the same. The others do not
    count, not even towards `min_cluster_size`."""

    is_keyed, hides_uploads, sends_weight = True, True, False

    def __init__(self, how: SecureSumParameters = SecureSumParameters(), *, num_clusters: int):
        """Makes the factory; arguments as in `SecureClusteredMeanFactory`."""
        self._weighted = SecureClusteredMeanFactory(how, num_clusters=num_clusters).with_equal_weights()
        self.members_needed, self.clipped = self._weighted.members_needed, self._weighted.clipped

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value `<key=int32,value=T>`, without masks."""
        return self._weighted.uploaded_type(value_type)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        return counting_alike(self._weighted, value_type, weight_type)


def integer_rows(member_type: tff.Type, clusters: int, *, weighted: bool = True) -> tff.Type:
    """Returns the type of the whole numbers that a client sends into `secure_sums`: 31 bits each, counted as four
    bytes."""

    def rows(leaf):
        return tff.TensorType(np.int32, [clusters, *leaf.shape])

    value, one = tff.types.structure_from_tensor_type_tree(rows, member_type), tff.TensorType(np.int32, [clusters])
    return tff.to_type(collections.OrderedDict(value=value, **({"weight": one} if weighted else {}), clients=one))


def simulated(computation: tff.Computation) -> tff.Computation:
    """Returns a computation that this machine's runtime can run: secure sums become plain sums of the same values.

    A simulation holds every client's value anyway. Exports keep the secure sums.
    """
    if b"federated_secure" not in tff.framework.serialize_computation(computation).SerializeToString():
        return computation
    return tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
