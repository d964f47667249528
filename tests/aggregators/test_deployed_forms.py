"""Which of TFF's deployable forms a round has under each aggregation; what is exported has fresh noise and no
attackers.
"""

import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_model_optimization.python.core.internal import tensor_encoding as te

import tffcl
from tests.runtime.processes import Processes
from tests.short_runs import TRAINING, cohort_of, deployed_inputs
from tffcl.aggregators.upload_attacks import AttackedFactory
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.export import deployment_forms
from tffcl.export.deployment_forms import missing_on_devices, operations_of
from tffcl.lab.tasks import build, resolve
from tffcl.rounds import blocks
from tffcl.rounds.composer import plain_containers
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import type_bytes

RULES = {
    "secure_sum": {},
    "dp": {},
    "dp with secure sums": {"secure": True},
    "compression": {},
    "robust clipping": {"rule": "clipping"},
    "robust median": {"rule": "median"},
}
SUMS_ONLY = ("secure_sum", "dp with secure sums")
# By default sums, and sums with noise; what needs each update has the form that StoCFL's rounds have in the conformance
# suite, which collect as well.
KINDS = [label if label in ("secure_sum", "dp") else pytest.param(label, marks=pytest.mark.slow) for label in RULES]


def round_of(model, label):
    aggregation = tffcl.aggregation(label.split(" ")[0], **RULES[label])
    return build_clustered_training(model, TRAINING, aggregation=aggregation).round_for(2)


@pytest.mark.parametrize("label", KINDS)
def test_each_rule_has_a_map_reduce_form_and_those_of_sums_alone_the_other(tff_worker, model, population, label):
    composed = round_of(model, label)
    form = deployment_forms.build_form("map_reduce", composed.deployed)
    assert isinstance(form, tff.backends.mapreduce.MapReduceForm)
    assert not missing_on_devices(operations_of(form.work))
    if label not in (*SUMS_ONLY, "compression"):  # whose numbers are of other types there
        assert composed.transfer.up_bytes() == type_bytes(form.work.type_signature.result[0])
    if label in SUMS_ONLY:
        silent = composed.as_promised.deployed
        assert "loss" not in str(silent.type_signature.result) and "client_id" not in str(silent.type_signature.result)
        form = deployment_forms.build_form("distribute_aggregate", silent)
        assert isinstance(form, tff.backends.mapreduce.DistributeAggregateForm)
        serialized = tff.framework.serialize_computation(silent).SerializeToString()
        assert b"federated_secure_sum_bitwidth" in serialized and b"federated_aggregate" not in serialized
    else:
        with pytest.raises(ValueError, match="Expected a `tff.FederatedType` to not contain"):
            deployment_forms.build_form("distribute_aggregate", composed.deployed)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["robust median", "compression", "robust clipping"])
def test_a_deployed_round_gives_the_models_of_the_simulated_one(tff_worker, model, population, label):
    composed = round_of(model, label) if label != "compression" else build_clustered_training(
        model, TRAINING, aggregation=tffcl.aggregation("compression", seed=1)
    ).round_for(2)  # fmt: skip
    models = np.repeat(model.initial[None], 2, axis=0)
    cohort, keys = cohort_of(population, [0, 1, 2, 3], 1), np.array([0, 1, 0, 1], np.int32)
    simulated = run_round(composed, cohort, {"models": models}, composed.initial_aggregators, key=keys).values["models"]
    state = {"models": models, "aggregators": composed.initial_aggregators}
    deployed = composed.deployed(state, deployed_inputs(cohort, key=keys))[0]["models"]
    np.testing.assert_allclose(deployed, simulated, atol=1e-2 if label == "compression" else 2e-5)
    with simulating(shards=2):
        sharded = run_round(composed, cohort, {"models": models}, composed.initial_aggregators, key=keys)
    np.testing.assert_allclose(sharded.values["models"], simulated, rtol=0, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["robust median", "dp with secure sums", "compression"])
def test_every_rule_can_be_cut_into_blocks(tff_worker, model, label):
    """Also into blocks whose clients are in shards, with sums of their own; a round whose aggregations cannot be merged
    has no such form."""
    partial = blocks.BlockForm(round_of(model, label)).sharded_block.type_signature.result["partial"]
    assert partial.placement is tff.SERVER, label


@pytest.mark.slow
def test_an_aggregation_whose_server_draws_is_not_cut(tff_worker, population):
    """A rotation of tensor_encoding's: what clients turn by one draw, the end of a cut round would turn back by
    another. Its rounding draws on clients alone, and an export tells that, too."""
    keras = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)])
    spec = {"x": tf.TensorSpec([None, 3]), "y": tf.TensorSpec([None], tf.int32)}
    model = tffcl.FlatModel.from_keras(keras, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), spec)
    rotated, rounded = te.encoders.hadamard_quantization(8), te.encoders.uniform_quantization(8)

    def composed(encoder):
        inner = tff.aggregators.EncodedSumFactory(functools.partial(te.encoders.as_gather_encoder, encoder))
        mean = tff.aggregators.MeanFactory(inner, no_nan_division=True)
        return build_clustered_training(model, TRAINING, aggregation=mean).round_for(1)

    with pytest.raises(UserError, match=r"can't be taken in parts \(its server draws numbers"):
        blocks.block_form(composed(rotated)).sums  # noqa: B018
    with simulating(shards=1):
        models = {"models": model.initial[None]}
        assert blocks.plan(composed(rotated), cohort_of(population, [0, 1], 1), models) == blocks.Plan()
    with pytest.raises(ValueError, match="prepare draws numbers that update would draw anew"):
        deployment_forms.build_form("map_reduce", composed(rotated).deployed)
    deployed = composed(rounded).deployed
    assert deployment_forms.draws_noise(deployed) and deployment_forms.build_form("map_reduce", deployed)


def test_what_is_loaded_of_a_run_has_fresh_noise_and_nobody_malicious(tff_worker):
    overrides = {"aggregation": {"name": "dp"}, "attack": {"share": 0.2}, "model": {"hidden": 4}}
    chosen = resolve.resolve("demo_digits", "fedavg", overrides=overrides)
    federated = build.load_data(chosen)
    model = build.build_model(chosen, federated)

    def factory(**more):
        return build.build_method(chosen, model, federated, **more).engine.round_for(1).uploads["update"]

    deployed, simulated = factory(), factory(simulated=True)
    assert type(deployed).__name__ == "PrivateClusteredMeanFactory" and type(simulated).__name__ == "AttackedFactory"
    assert deployed.noise_seed is None and simulated.noise_seed is not None


SIMULATED = {
    "dp by hand": lambda: tffcl.aggregation("dp", seed=1),
    "compression by hand": lambda: tffcl.aggregation("compression", seed=1),
    "attacked": lambda: AttackedFactory(None, "sign_flip", [0, 2]),
    "attacked dp": lambda: AttackedFactory(tffcl.aggregation("dp", seed=1), "gaussian", [0, 2]),
}


@pytest.mark.parametrize("label", SIMULATED)
def test_what_is_exported_has_nothing_of_a_simulation(tff_worker, model, population, label):
    method = build_fedavg(model, TRAINING, aggregation=SIMULATED[label]())
    state = method.initialize(population)
    training = method.exports().computations(state)["training"]
    assert b"StatelessRandomNormal" not in tff.framework.serialize_computation(training).SerializeToString()
    assert deployment_forms.draws_noise(training) == (label != "attacked")
    if label == "attacked":  # the same client moves the model alike, whatever its ID
        (client,) = deployed_inputs(cohort_of(population, [0], 1), key=np.zeros(1, np.int32))
        value = {"models": state.models, "aggregators": state.aggregators}
        moved = [training(value, [{**client, "client_id": np.int32(each)}])[0]["models"] for each in (0, 1, 2)]
        np.testing.assert_array_equal(moved[0], moved[1])
        np.testing.assert_array_equal(moved[0], moved[2])


# Of the catalog: one model or some that follow from signatures, from choices, from losses or from what clients upload,
# mixtures of models, and those with something beside their updates or with models that clients keep.
METHODS = ("pacfl", "ifca", "rr_cluster", "fedgwc", "stocfl", "fedem", "fedrc", "fedsoft", "scaffold", "ditto")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_methods_export_has(tff_worker, name):
    """Of a method of each kind that takes an aggregation, built as a run builds it."""
    # These take no noise inside clusters: something else travels beside their updates, or their clusters come and go.
    rule = "uniform_mean" if name in ("stocfl", "fedgwc", "fedrc") else "dp"
    rule = "compression" if name == "fedsoft" else rule  # whose means are by weights of its own
    small = {"model": {"hidden": 4}, "partition": {"clients": 8}, "dataset": {"server_examples": 60}}
    chosen = resolve.resolve(
        "demo_digits", name, overrides={"attack": {"share": 0.2}, "aggregation": {"name": rule}, **small}
    )
    federated = build.load_data(chosen)
    method = build.build_method(chosen, build.build_model(chosen, federated), federated, simulated=True)
    for each, computation in method.exports().build().items():
        written = tff.framework.serialize_computation(computation).SerializeToString()
        assert b"StatelessRandomNormal" not in written or each == "signature", each
        fields = computation.type_signature.parameter
        assert fields is None or "own_noise" not in str(fields)


def test_the_bytes_are_those_that_a_rule_sends(model):
    plain = build_clustered_training(model, TRAINING).round_for(2).transfer.up_bytes()
    sent = {label: round_of(model, label).transfer.up_bytes() for label in RULES}
    upload = 4 * model.size
    assert sent["robust median"] == plain
    assert plain - 0.76 * upload < sent["compression"] < plain - 0.7 * upload
    # A row for each of the two clusters, with a count and a weight or a vote, in the place of key, upload and weight.
    assert {sent[label] for label in SUMS_ONLY} == {plain - (4 + upload + 4) + 2 * (upload + 4 + 4)}
    assert sent["dp"] == plain + 4  # the vote on the clip
    assert sent["robust clipping"] == plain + 4 + 4 + 4  # with a key and a weight of its own


PRIVATE = {"dp": {"noise_multiplier": 0.5, "min_cluster_size": 0.5, "seed": 4}, "secure_sum": {}, "lie": {"share": 0.4}}


def attacked_round(model, label):
    """A round with noise by a seed, secure sums, or two of five clients that know what all others upload."""
    aggregation = (
        AttackedFactory(None, "lie", [1, 2]) if label == "lie" else tffcl.aggregation(label, **PRIVATE[label])
    )  # fmt: skip
    return build_clustered_training(model, TRAINING, aggregation=aggregation).round_for(2)


def models_after(composed, model, population, clients=(0, 1, 2, 3, 4)):
    cohort, keys = cohort_of(population, np.array(clients, np.int32), 1), np.array(clients, np.int32) % 2
    values = {"models": np.repeat(model.initial[None], 2, axis=0)}
    return run_round(composed, cohort, values, composed.initial_aggregators, key=keys)


@pytest.mark.parametrize(
    "label", ["dp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("secure_sum", "lie"))]
)
def test_blocks_release_what_the_whole_does(tff_worker, model, population, label):
    """The noise is drawn once, of the sums of all blocks; attackers that know everybody know those of other blocks.

    Of no cluster two members are in the same block: a cluster is large enough by all blocks together. The clients of
    each are in a shard."""
    composed = attacked_round(model, label)
    whole = models_after(composed, model, population)
    with mock.patch.object(blocks, "plan", lambda *_: blocks.Plan(blocks=3, in_flight=2, shards=1)):
        parts = models_after(composed, model, population)
    np.testing.assert_allclose(parts.values["models"], whole.values["models"], rtol=0, atol=3e-6)
    for what in ("aggregators", "measurements"):  # the next round's noise is another one
        found, expected = (plain_containers(getattr(each, what)) for each in (parts, whole))
        tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected)
    assert np.abs(whole.values["models"] - model.initial).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("label", ["dp", "lie"])
def test_two_workers_release_what_one_does(tff_worker, worker, model, population, label):
    composed = attacked_round(model, label)
    whole = models_after(composed, model, population)
    processes = Processes()
    try:
        processes.use(processes.start(2))
        together = models_after(composed, model, population)
        if label == "dp":
            nobody = models_after(composed, model, population, ()).measurements["update"]["clients"]
            assert np.abs(nobody).min() > 0  # noise
    finally:
        worker.use_local_worker()
        for each in processes.started:
            each.stop()
    np.testing.assert_allclose(together.values["models"], whole.values["models"], rtol=0, atol=3e-6)
    assert together.measurements.keys() == whole.measurements.keys()
