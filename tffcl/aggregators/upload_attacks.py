"""Malicious clients in simulations: their uploads are changed before they are aggregated."""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.aggregators.clustered_mean import check_types, keyed_factory, segment_process
from tffcl.aggregators.contract import FactoryTraits, traits
from tffcl.aggregators.per_cluster import aggregation_process, by_row
from tffcl.aggregators.secure_mean import simulated

# How a malicious client changes its upload u, and the default strength.
STRENGTHS = {"sign_flip": 3.0, "gaussian": 10.0, "lie": 1.5, "label_flip": 1.0, "model_replacement": 10.0}
OF_DATA = ("label_flip", "model_replacement")  # these train on wrong labels


class AttackedFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` that lets some clients attack another factory over keyed uploads.

    With strength s an upload u of a malicious client becomes

    * "sign_flip": -s u;
    * "gaussian": noise of s times the root mean square of u in every coordinate;
    * "lie": mean - s · standard deviation of the honest uploads of its cluster's members; a small s is enough (Baruch
      et al. 2019, Alg. 3, by attackers who know all uploads);
    * "label_flip": u, from a client that trains on wrong labels;
    * "model_replacement": s u, from such a client (Bagdasaryan et al. 2020, Eq. 3).

    This is for simulations only, as the factory receives the clients' IDs. "lie" must know all honest uploads before it
    changes one; if a cohort computes in parts, they are collected and aggregated together (`by_parts`).
    """

    is_keyed = True
    takes_client_ids = True

    def __init__(self, inner, kind: str, malicious, strength: float | None = None):
        """Makes the factory.

        Args:
          inner: The factory that is attacked, as `aggregation` of the methods' builders; None for the plain mean.
          kind: One of `STRENGTHS`.
          malicious: IDs of the malicious clients.
          strength: s; default as in `STRENGTHS`.
        """
        self._inner, self._kind, self._malicious = keyed_factory(inner), kind, np.asarray(malicious, np.int32)
        self._strength = STRENGTHS[kind] if strength is None else strength
        of = traits(self._inner)  # the attacked factory keeps its traits
        self.noise_multiplier = of.noise_multiplier
        self.noise_seed = of.noise_seed
        self.hides_uploads = of.hides_uploads
        self.is_mean, self.is_uniform = of.is_mean, of.is_uniform
        self.members_needed, self.clipped = of.members_needed, of.clipped
        self.by_length, self.sends_weight = of.by_length, of.sends_weight
        self.num_clusters, self.waits_for_clusters = of.num_clusters, of.waits_for_clusters
        self.by_parts = (lambda state: _Collected(self._process.next, state)) if kind == "lie" else None

    def beside(self, plain, bound: float | None = None):
        """Returns the factory for another upload, which is not attacked."""
        return traits(self._inner).beside(plain, bound)

    def deployed(self) -> tff.aggregators.AggregationFactory:
        """Returns the deployed form of the attacked factory."""
        return traits(self._inner).deployed()

    def with_clusters(self, num_clusters: int) -> "AttackedFactory":
        """Returns the factory for this number of clusters."""
        inner = traits(self._inner).with_clusters(num_clusters) if self.waits_for_clusters else self._inner
        return self._of(inner)

    def with_equal_weights(self) -> "AttackedFactory":
        """Returns the factory for uploads whose weights are all 1, or 0."""
        return self._of(traits(self._inner).with_equal_weights())

    def with_layers(self, layers) -> "AttackedFactory":
        """Returns the factory for flat values whose parts, of these lengths, are layers of a model."""
        return self._of(traits(self._inner).with_layers(layers))

    def numbered(self, number: int) -> "AttackedFactory":
        """Returns the factory for one of several uploads of the same clients."""
        return self._of(traits(self._inner).numbered(number))

    def _of(self, inner) -> "AttackedFactory":
        return type(self)(inner, self._kind, self._malicious, self._strength)

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type that a client sends to the attacked factory for the upload."""
        return traits(self._inner).uploaded_type(value_type["upload"])

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<client_id=int32, upload=<key=int32, value=T>>`."""
        upload_type = value_type["upload"]
        check_types(upload_type, weight_type)
        weighted = isinstance(self._inner, tff.aggregators.WeightedAggregationFactory)
        inner = self._inner.create(upload_type, weight_type) if weighted else self._inner.create(upload_type)
        guide, guide_type = self._build_guide(upload_type)

        @tff.tensorflow.computation(value_type, guide_type)
        def attack(client, guide):
            upload = client["upload"]
            malicious = self._is_malicious(client)

            def changed(leaf, *guides):
                return tf.where(
                    malicious, self._changed(leaf, client["client_id"], *[rows[upload["key"]] for rows in guides]), leaf
                )

            guides = guide if self._kind == "lie" else ()
            value = tf.nest.map_structure(changed, upload["value"], *guides)
            return collections.OrderedDict(key=upload["key"], value=value)

        def step(state, value, weight):
            attacked = tff.federated_map(attack, (value, tff.federated_broadcast(guide(value))))
            return inner.next(state, attacked, weight) if weighted else inner.next(state, attacked)

        self._process = aggregation_process(inner.initialize, step, value_type, weight_type)
        return self._process

    def _build_guide(self, upload_type: tff.Type):
        """What attackers know of the honest uploads: for "lie" their means and standard deviations by cluster, else
        nothing."""
        if self._kind != "lie":
            nothing = tff.tensorflow.computation(lambda: tf.constant(0.0))
            return lambda value: tff.federated_eval(nothing, tff.SERVER), tff.TensorType(np.float32)
        member = upload_type["value"]
        known_type = tff.to_type(collections.OrderedDict(key=np.int32, value=[member, member, np.float32]))
        mean = segment_process(known_type, None, None)

        @tff.tensorflow.computation(collections.OrderedDict(client_id=np.int32, upload=upload_type))
        def moments(client):
            upload = client["upload"]
            honest = tf.logical_not(self._is_malicious(client))

            def counted(leaf):  # malicious clients count only as members
                return tf.where(honest, leaf, tf.zeros_like(leaf))

            squares = tf.nest.map_structure(lambda leaf: counted(leaf) ** 2, upload["value"])
            value = [tf.nest.map_structure(counted, upload["value"]), squares, tf.where(honest, 1.0, 0.0)]
            return collections.OrderedDict(key=upload["key"], value=value)

        @tff.tensorflow.computation(mean.next.type_signature.result.result.member)
        def finish(means):
            def scaled(leaf):
                return tf.math.divide_no_nan(leaf, by_row(share, leaf))

            *moments, share = means
            first, second = (tf.nest.map_structure(scaled, each) for each in moments)
            deviation = tf.nest.map_structure(
                lambda square, one: tf.sqrt(tf.maximum(square - one**2, 0.0)), second, first
            )
            return [first, deviation]

        def guide(value):
            return tff.federated_map(finish, mean.next(mean.initialize(), tff.federated_map(moments, value)).result)

        return guide, finish.type_signature.result

    def _is_malicious(self, client) -> tf.Tensor:
        return tf.reduce_any(tf.equal(client["client_id"], self._malicious))

    def _changed(self, leaf, client_id, *guides):
        strength = tf.cast(self._strength, leaf.dtype)
        if self._kind == "lie":
            mean, deviation = guides
            return mean - strength * deviation
        if self._kind == "gaussian":
            seed = tf.stack([client_id, tf.bitcast(tf.cast(tf.reduce_sum(leaf), tf.float32), tf.int32)])
            size = tf.sqrt(tf.reduce_mean(leaf**2))
            return strength * size * tf.random.stateless_normal(tf.shape(leaf), seed, dtype=leaf.dtype)
        return leaf * (-strength if self._kind == "sign_flip" else strength)


class _Collected:
    """Collects a cohort's uploads, which come in parts, and then aggregates all; see `FactoryTraits.by_parts`."""

    def __init__(self, aggregate: tff.Computation, state):
        self._aggregate, self._state, self._uploads, self._weights = aggregate, state, [], []

    def add(self, uploads, weights: np.ndarray):
        """Takes the uploads of some clients, a structure of values `[b, ...]`, and `float32 [b]`."""
        leaves = tf.nest.flatten(uploads)
        for place, weight in enumerate(weights):
            self._uploads.append(tf.nest.pack_sequence_as(uploads, [leaf[place] for leaf in leaves]))
            self._weights.append(np.float32(weight))

    def finish(self) -> tuple:
        """Returns the process' next state, its result and its measurements."""
        weighted = len(self._aggregate.type_signature.parameter) > 2
        given = (self._uploads, self._weights) if weighted else (self._uploads,)
        # It runs on one worker; to share it, several workers would need an aggregation that can be split into parts.
        with tff.framework.get_context_stack().install(next(iter(runtime.lanes()))):
            output = simulated(self._aggregate)(self._state, *given)
        return tuple(
            output[name] if isinstance(output, Mapping) else getattr(output, name)
            for name in ("state", "result", "measurements")
        )
