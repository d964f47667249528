"""Arguments and data that the process for users of `tff.learning` refuses, each with a line that names them."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.errors import UserError
from tffcl.learning.clustered_fed_avg import build_choose, build_clustered_fed_avg


@pytest.mark.parametrize(
    "given, message",
    [
        ({"num_clusters": 0}, "num_clusters is 0; it must be a whole number from 1"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ({"client_weighting": "uniform"}, "client_weighting is uniform; it must be a tff.learning.ClientWeighting"),
        ({"model_aggregator": ClusteredMeanFactory(3)}, "num_clusters is 2, and that of model_aggregator 3"),
        (
            {"model_aggregator": tff.aggregators.MeanFactory()},
            r"is put inside the clusters by ClusteredMeanFactory\(num_cl",
        ),
        (
            {"model_aggregator": tff.learning.robust_aggregator()},
            r"is put inside the clusters by ClusteredMeanFactory\(num_cl",
        ),
        (
            {"model": tf.keras.Sequential()},
            "model is of Sequential; it must be a tffcl.FlatModel, as FlatModel.from_keras makes",
        ),
        ({"metrics_aggregator": tff.aggregators.MeanFactory()}, "metrics_aggregator is of MeanFactory; it must sum"),
        (
            {"metrics_aggregator": tff.learning.metrics.sum_then_finalize},
            "metrics_aggregator is of function; it must su",
        ),
        (
            {"metrics_aggregator": tff.aggregators.SecureModularSumFactory(2**20)},
            r"metrics_aggregator cannot sum float32 \(",
        ),
        (
            {"server_optimizer_fn": tf.keras.optimizers.SGD},
            "server_optimizer_fn is of .*; it must be one of tff.learning.o",
        ),
        ({"training": 0.1}, r"training is of float; it must be a LocalTraining\(...\)"),
        ({"element_spec": tf.TensorSpec([None, 8, 8, 1], tf.uint8)}, r"they must be \(x, y\)"),
    ],
)
def test_arguments(model, given, message):
    with pytest.raises(UserError, match=message):
        build_clustered_fed_avg(**{"model": model, "num_clusters": 2, **given})


@pytest.mark.parametrize(
    "x, y, message",
    [
        (
            tf.TensorSpec([None, 8, 8, 1]),
            tf.TensorSpec([None], tf.int32),
            r"x of element_spec is float32\(None, 8, 8, 1\)",
        ),
        (tf.TensorSpec([None, 8, 8], tf.uint8), tf.TensorSpec([None], tf.int32), "the model takes uint8"),
        (tf.TensorSpec([8, 8, 1], tf.uint8), tf.TensorSpec([], tf.float32), "y of element_spec is float32"),
        (tf.TensorSpec([8, 8, 1], tf.uint8), tf.TensorSpec([None], tf.int32), "one is a batch and the other is not"),
    ],
)
def test_data_that_the_model_does_not_take(model, x, y, message):
    with pytest.raises(UserError, match=message):
        build_choose(model, 2, element_spec=(x, y))
