import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, UniformMeanFactory, keyed_factory
from tffcl.errors import UserError
from tffcl.validation import tell_once

STRUCT = collections.OrderedDict(a=np.float32, b=tff.TensorType(np.float32, [2]))
FLOAT = tff.TensorType(np.float32)


def keyed(value):
    return tff.to_type(collections.OrderedDict(key=np.int32, value=value))


def uploads(keys):
    return [
        collections.OrderedDict(key=key, value=collections.OrderedDict(a=float(i), b=[i * 1.0, i * 2.0]))
        for i, key in enumerate(keys)
    ]


class OwnMean(tff.aggregators.UnweightedAggregationFactory):
    """A stranger's, of which nobody knows what it does with the zeros of clients that are no members."""

    def create(self, value_type):
        return tff.aggregators.UnweightedMeanFactory().create(value_type)


class TestComputation:
    def test_types(self):
        process = ClusteredMeanFactory().create(keyed(STRUCT), FLOAT)
        state = tff.FederatedType(tff.to_type(()), tff.SERVER)
        result = collections.OrderedDict(a=tff.TensorType(np.float32, [None]), b=tff.TensorType(np.float32, [None, 2]))
        measurements = collections.OrderedDict(
            weight=tff.TensorType(np.float32, [None]), clients=tff.TensorType(np.int32, [None])
        )
        expected = tff.FunctionType(
            collections.OrderedDict(
                state=state,
                value=tff.FederatedType(keyed(STRUCT), tff.CLIENTS),
                weight=tff.FederatedType(FLOAT, tff.CLIENTS),
            ),
            tff.templates.MeasuredProcessOutput(
                state, tff.FederatedType(result, tff.SERVER), tff.FederatedType(measurements, tff.SERVER)
            ),
        )
        assert process.next.type_signature.is_equivalent_to(expected)

    def test_a_keyed_factory_that_is_none_of_ours_is_refused(self):
        with pytest.raises(UserError, match="Keyed takes keyed uploads; it must derive from tffcl.parts.FactoryTraits"):
            keyed_factory(type("Keyed", (OwnMean,), {"is_keyed": True})())

    @pytest.mark.parametrize("value", [STRUCT, collections.OrderedDict(key=np.float32, value=FLOAT)])
    def test_a_value_without_a_key_is_refused(self, value):
        with pytest.raises(TypeError, match="key=int32,value=T"):
            ClusteredMeanFactory().create(tff.to_type(value), FLOAT)

    def test_integers_are_refused(self):
        with pytest.raises(TypeError, match="floating"):
            ClusteredMeanFactory().create(keyed(np.int32), FLOAT)

    def test_a_weight_per_coordinate_is_refused(self):
        with pytest.raises(TypeError, match="scalar weight"):
            ClusteredMeanFactory().create(keyed(FLOAT), tff.TensorType(np.float32, [2]))

    def test_bad_arguments(self):
        with pytest.raises(UserError, match="num_clusters is 0"):
            ClusteredMeanFactory(0)
        with pytest.raises(UserError, match="needs num_clusters"):
            ClusteredMeanFactory(inner_factory=tff.aggregators.MeanFactory()).create(keyed(np.float32), FLOAT)


class TestExecution:
    @pytest.mark.parametrize(
        "factory, rows",
        [
            (ClusteredMeanFactory(), 3),
            (ClusteredMeanFactory(4), 4),
            (ClusteredMeanFactory(4, tff.aggregators.MeanFactory(no_nan_division=True)), 4),
            (ClusteredMeanFactory(4, tff.aggregators.MeanFactory()), 4),
        ],
        ids=["as many as keys", "fixed", "inner mean", "inner mean of 0 / 0"],
    )
    def test_weighted_means_by_key(self, tff_worker, factory, rows):
        process = factory.create(keyed(STRUCT), FLOAT)
        output = process.next(process.initialize(), uploads([0, 2, 2, 0]), [1.0, 2.0, 3.0, 4.0])
        expected = np.zeros(rows)
        expected[0] = (0 * 1 + 3 * 4) / 5
        expected[2] = (1 * 2 + 2 * 3) / 5
        np.testing.assert_allclose(output.result["a"], expected, rtol=1e-6)
        np.testing.assert_allclose(output.result["b"], expected[:, None] * [1, 2], rtol=1e-6)

    def test_measurements(self, tff_worker):
        process = ClusteredMeanFactory(4).create(keyed(STRUCT), FLOAT)
        measured = process.next(process.initialize(), uploads([0, 2, 2, 0]), [1.0, 2.0, 3.0, 4.0]).measurements
        np.testing.assert_array_equal(measured["weight"], [5, 0, 5, 0])
        np.testing.assert_array_equal(measured["clients"], [2, 0, 2, 0])

    def test_the_order_of_clients_does_not_matter(self, tff_worker):
        process = ClusteredMeanFactory().create(keyed(STRUCT), FLOAT)
        clients, weights = uploads([5, 1, 5, 0, 1]), [1.0, 2.0, 3.0, 4.0, 5.0]
        forth = process.next(process.initialize(), clients, weights).result
        back = process.next(process.initialize(), clients[::-1], weights[::-1]).result
        np.testing.assert_allclose(forth["b"], back["b"], rtol=1e-6)
        assert forth["b"].shape == (6, 2)

    @pytest.mark.slow
    @pytest.mark.parametrize("factory, rows", [(ClusteredMeanFactory(), 40), (ClusteredMeanFactory(45), 45)])
    def test_more_clusters_than_tensors_that_hold_their_sums(self, tff_worker, factory, rows):
        generator = np.random.default_rng(0)
        # Two of three clusters are empty, whole slots too.
        keys = np.append(generator.choice(np.arange(0, 39, 3), 30), 39)
        weights = generator.uniform(1, 2, len(keys)).astype(np.float32)
        process = factory.create(keyed(STRUCT), FLOAT)
        output = process.next(process.initialize(), uploads(keys.tolist()), weights.tolist())
        sums, total = np.zeros(rows), np.zeros(rows)
        np.add.at(sums, keys, weights * np.arange(len(keys)))
        np.add.at(total, keys, weights)
        expected = np.divide(sums, total, out=np.zeros(rows), where=total > 0)
        np.testing.assert_allclose(output.result["a"], expected, rtol=1e-5)
        np.testing.assert_allclose(output.result["b"], expected[:, None] * [1, 2], rtol=1e-5)
        np.testing.assert_array_equal(output.measurements["clients"], np.bincount(keys, minlength=rows))

    def test_a_client_of_weight_zero_is_silent_even_if_its_value_is_nan(self, tff_worker):
        process = ClusteredMeanFactory().create(keyed(np.float32), FLOAT)
        clients = [collections.OrderedDict(key=0, value=np.float32(value)) for value in (2.0, np.nan)]
        output = process.next(process.initialize(), clients, [3.0, 0.0])
        np.testing.assert_array_equal(output.result, [2.0])

    def test_a_key_beyond_the_clusters_is_an_error(self, tff_worker):
        process = ClusteredMeanFactory(2).create(keyed(np.float32), FLOAT)
        with pytest.raises(Exception, match="(?i)indices|out of bounds"):
            process.next(process.initialize(), [collections.OrderedDict(key=2, value=1.0)], [1.0])

    def test_differential_privacy_per_cluster(self, tff_worker):
        """Without noise and within the clip, DP's mean is the sum over the expected number of clients per cluster."""
        inner = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
            noise_multiplier=0.0, clients_per_round=2.0, clip=100.0
        )
        process = ClusteredMeanFactory(2, inner).create(keyed(tff.TensorType(np.float32, [2])), FLOAT)
        clients = [
            collections.OrderedDict(key=key, value=[value, 0.0]) for key, value in ((0, 1.0), (1, 5.0), (1, 7.0))
        ]
        output = process.next(process.initialize(), clients, [1.0, 1.0, 1.0])
        np.testing.assert_allclose(output.result, [[0.5, 0.0], [6.0, 0.0]], atol=1e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "make, right",
        [
            (tff.aggregators.UnweightedMeanFactory, False),
            (lambda: tff.learning.robust_aggregator(weighted=False), False),
            (lambda: tff.learning.compression_aggregator(weighted=False), False),
            (lambda: tff.learning.secure_aggregator(weighted=False), False),
            (lambda: tff.learning.dp_aggregator(0.5, 100, zeroing=True), True),
            (lambda: tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory()), True),
            (tff.learning.robust_aggregator, True),
            (OwnMean, False),
        ],
    )
    def test_what_counts_the_clients_of_all_clusters_is_refused(self, make, right):
        factory, row = make(), keyed(tff.TensorType(np.float32, [2]))
        assert ClusteredMeanFactory(1, factory).create(row, FLOAT)
        if right:
            assert ClusteredMeanFactory(2, factory).create(row, FLOAT)
        else:
            with pytest.raises(
                UserError, match=f"{type(factory).__name__} is unweighted, so that in each of 2 clusters"
            ):
                ClusteredMeanFactory(2, factory).create(row, FLOAT)

    def test_that_a_factory_sums_is_told(self, capsys):
        row, encoded = keyed(tff.TensorType(np.float32, [2])), tff.aggregators.EncodedSumFactory
        tell_once.cache_clear()
        ClusteredMeanFactory(1, tff.aggregators.MeanFactory()).create(row, FLOAT)
        assert not capsys.readouterr().err
        ClusteredMeanFactory(1, encoded.quantize_above_threshold()).create(row, FLOAT)
        assert "EncodedSumFactory sums: a model moves by the sum of its clients' updates" in capsys.readouterr().err

    def test_that_bounds_which_adapt_sink_in_clusters_is_told(self, capsys):
        row = keyed(tff.TensorType(np.float32, [2]))
        tell_once.cache_clear()
        for count, norm in ((1, tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.8, 0.2)), (2, 1.0)):
            ClusteredMeanFactory(count, tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())).create(
                row, FLOAT
            )
        assert not capsys.readouterr().err
        ClusteredMeanFactory(2, tff.learning.robust_aggregator()).create(row, FLOAT)
        assert "if one is a clip or a bound that adapts, give a fixed one" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "mean", [tff.aggregators.MeanFactory(), UniformMeanFactory()], ids=["by weights", "uniform"]
    )
    def test_means_in_clusters_of_three_and_one(self, tff_worker, mean):
        process = ClusteredMeanFactory(2, mean).create(keyed(np.float32), FLOAT)
        clients = [
            collections.OrderedDict(key=key, value=value) for key, value in ((0, 1.0), (0, 2.0), (0, 3.0), (1, 10.0))
        ]
        np.testing.assert_allclose(process.next(process.initialize(), clients, [2.0] * 4).result, [2, 10])

    @pytest.mark.slow
    def test_secure_sums_per_cluster(self, worker):
        """Secure sums run in TFF's test runtime only; the means are those of plain sums up to the quantisation."""
        bound = 10.0
        inner = tff.aggregators.MeanFactory(
            tff.aggregators.SecureSumFactory(bound), tff.aggregators.SecureSumFactory(bound), no_nan_division=True
        )
        process = ClusteredMeanFactory(2, inner).create(keyed(np.float32), FLOAT)
        tff.backends.test.set_sync_test_cpp_execution_context()
        try:
            clients = [collections.OrderedDict(key=key, value=value) for key, value in ((1, 1.0), (1, 3.0), (0, 2.0))]
            output = process.next(process.initialize(), clients, [1.0, 1.0, 2.0])
        finally:
            worker.use_local_worker()
        np.testing.assert_allclose(output.result, [2.0, 2.0], atol=1e-5)
