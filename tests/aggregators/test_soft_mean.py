"""K weighted means of one upload, against NumPy; and with what runs once for each of them."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.secure_mean import simulated
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.errors import UserError
from tffcl.export import deployment_forms
from tffcl.rounds.composer import plain_containers
from tffcl.rounds.traffic import type_bytes

K, SIZE, CLIENTS = 3, 5, 7
RNG = np.random.default_rng(1)
VALUES = RNG.normal(size=(CLIENTS, K, SIZE)).astype(np.float32)
MIXTURES = RNG.dirichlet(np.ones(K), CLIENTS).astype(np.float32)
MIXTURES[:, 2] = 0  # nobody takes part in the last
WEIGHTS = np.arange(CLIENTS, dtype=np.float32)  # the first is silenced


def type_of(*shape, weights=K, dtype=np.float32):
    """The type of uploads whose values have this shape."""
    fields = {"weights": tff.TensorType(np.float32, [weights]), "value": tff.TensorType(dtype, shape)}
    return tff.to_type(collections.OrderedDict(fields))


TYPE = type_of(K, SIZE)


def uploads(values, mixtures=MIXTURES):
    return [collections.OrderedDict(weights=mixture, value=value) for mixture, value in zip(mixtures, values)]


def aggregated(factory, values, mixtures=MIXTURES, kind=TYPE):
    process = factory.create(kind, tff.TensorType(np.float32))
    given = uploads(values, mixtures), [float(each) for each in WEIGHTS]
    found = simulated(process.next)(process.initialize(), *given)
    return plain_containers(found)


def means(values=VALUES, weights=MIXTURES * WEIGHTS[:, np.newaxis]):
    sums = np.einsum("ck,ckp->kp", weights, values)
    return np.divide(sums, weights.sum(axis=0)[:, np.newaxis], out=np.zeros_like(sums), where=sums != 0)


def test_means_by_weights_of_each_client(tff_worker):
    values = VALUES.copy()
    values[0] = np.nan
    found = aggregated(SoftMeanFactory(K), values)
    expected = means(np.nan_to_num(values))
    np.testing.assert_allclose(found["result"], expected, atol=1e-6)
    assert not np.any(found["result"][2])
    np.testing.assert_allclose(found["measurements"]["weight"], WEIGHTS @ MIXTURES, rtol=1e-6)
    assert list(found["measurements"]["clients"]) == [6, 6, 0]


@pytest.mark.slow
def test_one_value_for_all_means(tff_worker):
    kind = type_of(SIZE)
    whole = np.repeat(VALUES[:, :1], K, axis=1)
    for aggregation in (None, tffcl.aggregation("secure_sum")):
        factory = SoftMeanFactory(K, aggregation, shared=True)
        found = aggregated(factory, VALUES[:, 0], kind=kind)
        np.testing.assert_allclose(found["result"], means(whole), atol=1e-4)
    assert SoftMeanFactory(K, shared=True).uploaded_type(kind) == kind


@pytest.mark.parametrize("name, same, atol", [
    ("dp", True, 1e-5), ("tff", False, 1e-6), pytest.param("secure_sum", False, 1e-4, marks=pytest.mark.slow),
    pytest.param("compression", False, 0.02, marks=pytest.mark.slow),
    pytest.param("robust", True, 1e-6, marks=pytest.mark.slow),
])  # fmt: skip
def test_other_aggregations_run_once_for_each_mean(tff_worker, name, same, atol):
    more = {"dp": {"noise_multiplier": 0, "clip": 100}, "robust": {"rule": "trimmed_mean", "attackers": 0.0}}
    own = tff.aggregators.MeanFactory() if name == "tff" else tffcl.aggregation(name, **more.get(name, {}))
    weights = MIXTURES * WEIGHTS[:, np.newaxis]
    if same:
        weights = (weights > 0).astype(np.float32)
    found = aggregated(SoftMeanFactory(K, own), VALUES)
    np.testing.assert_allclose(found["result"][:2], means(weights=weights)[:2], atol=atol)
    if name != "tff":  # of which a mean of nobody is NaN
        assert not np.any(found["result"][2])


@pytest.mark.slow
def test_noise_is_another_for_each_mean_and_counts_for_all(tff_worker):
    private = tffcl.aggregation("dp", noise_multiplier=0.5, clip=1.0, seed=3)
    factory = SoftMeanFactory(4, private)
    assert factory.noise_multiplier == 0.25 and factory.hides_uploads and SoftMeanFactory(4).noise_multiplier is None
    nothing, all_ones = np.zeros([CLIENTS, 4, SIZE], np.float32), np.ones([CLIENTS, 4], np.float32)
    found = aggregated(factory, nothing, all_ones, type_of(4, SIZE, weights=4))
    assert len(np.unique(found["result"])) == 4 * SIZE
    one = keyed_factory(private, 1)
    keyed = tff.to_type(collections.OrderedDict(key=np.int32, value=tff.TensorType(np.float32, [SIZE])))
    process = one.create(keyed, tff.TensorType(np.float32))
    given = [collections.OrderedDict(key=0, value=np.zeros(SIZE, np.float32))] * CLIENTS
    alone = process.next(process.initialize(), given, WEIGHTS.tolist())
    np.testing.assert_array_equal(found["result"][:1], alone.result)
    deployed = factory.deployed()
    assert deployed.noise_seed is None and factory.noise_seed == 3


@pytest.mark.slow
def test_traffic_and_forms(tff_worker):
    assert SoftMeanFactory(K).uploaded_type(TYPE) == TYPE
    secure = SoftMeanFactory(K, tffcl.aggregation("secure_sum"))
    assert len(secure.uploaded_type(TYPE)) == K and secure.members_needed == 2
    numbers = K * (type_bytes(TYPE["value"]) // K + 4)  # and the weight of each mean, in place of the client's own
    robust = SoftMeanFactory(K, tffcl.aggregation("robust"))
    assert type_bytes(robust.uploaded_type(TYPE)) == numbers + 4 * K  # keys
    assert type_bytes(secure.uploaded_type(TYPE)) == numbers + 4 * K  # counts
    assert SoftMeanFactory(K).sends_weight and not robust.sends_weight and not secure.sends_weight

    def form_of():
        next_fn = SoftMeanFactory(K).create(TYPE, tff.TensorType(np.float32)).next
        given = tff.to_type(collections.OrderedDict(upload=TYPE, weight=np.float32))

        @tff.federated_computation(tff.FederatedType((), tff.SERVER), tff.FederatedType(given, tff.CLIENTS))
        def one_round(state, clients):
            found = next_fn(state, clients["upload"], clients["weight"])
            return found.state, tff.federated_zip((found.result, found.measurements))

        return deployment_forms.build_form("map_reduce", one_round)

    work = form_of().work.type_signature.result[0]
    assert type_bytes(work) == 4 * (K * SIZE + K + 1)


@pytest.mark.parametrize(
    "kind, message",
    [
        (TYPE["value"], r"expected <weights=float32\[3\],value=.*>, found float32"),
        (type_of(K + 1, SIZE), "expected 3 rows in every tensor"),
        (type_of(K, SIZE, weights=2), r"expected <weights=float32\[3\],.*, found <weights=float32\[2\]"),
        (type_of(K, SIZE, dtype=np.int32), "a mean needs floating tensors, found int32"),
    ],
)
def test_other_types_are_refused(kind, message):
    with pytest.raises(TypeError, match=message):
        SoftMeanFactory(K).create(kind, tff.TensorType(np.float32))


def test_there_is_one_model_at_least():
    with pytest.raises(UserError, match="num_models is 0; it must be 1 or more"):
        SoftMeanFactory(0)
    assert traits(SoftMeanFactory(2)).is_mean
