"""Batch normalization of which each client keeps its own statistics, or its own layers: as in a loop in Keras."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests import own_data
from tests.conformance.strangers import ByParity
from tests.models.test_from_keras import keras_rounds
from tests.own_data import CROSS_ENTROPY, layers, sequential, spec
from tests.short_runs import TRAINING, cohort_of, train
from tffcl.algorithms import IFCAParameters, StoCFLParameters
from tffcl.algorithms.method import own_part
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.errors import UserError
from tffcl.signatures import anchor_gradient, partial_weights

STATISTICS, LAYERS = {4, 5, 10, 11}, {2, 3, 4, 5, 8, 9, 10, 11}  # places among the weights of `normalized`


def normalized():
    return sequential(
        layers.Dense(5, "relu", input_shape=(30,)), layers.BatchNormalization(momentum=0.5),
        layers.Dense(4), layers.BatchNormalization(momentum=0.5), layers.Dense(2),
    )  # fmt: skip


@functools.cache
def keeping(statistics) -> tffcl.FlatModel:
    metrics = ("accuracy", "log_loss")
    return tffcl.FlatModel.from_keras(
        normalized(), CROSS_ENTROPY, spec([30], tf.float32), "net", statistics=statistics, metrics=metrics
    )


@functools.cache
def clinics() -> tffcl.Population:
    return tffcl.Population.from_arrays(*own_data.clinics())


@pytest.mark.parametrize(
    "statistics, kept", [("fedbn", LAYERS), pytest.param("local", STATISTICS, marks=pytest.mark.slow)]
)
def test_rounds_are_those_of_a_loop_in_keras_in_which_clients_keep_their_own(tff_worker, statistics, kept):
    """Also of who took part twice; who did not has what the model has at first."""
    model, cohorts, own, keras = keeping(statistics), ((0, 1), (1, 3)), {}, normalized()
    first = keras.get_weights()
    shared = keras_rounds(keras, clinics(), cohorts, kept, own)
    method = tffcl.algorithms.build_fedavg(model, TRAINING)
    state = train(method, clinics(), cohorts)
    assert model.size == sum(each.size for place, each in enumerate(first) if place not in kept)
    assert not model.has_statistics and state.models.shape == (1, model.size)
    models, rows = method.used_models(state, clinics().client_ids)
    for client, row in enumerate(rows):
        found = model.whole.keras.with_weights(model.whole.unravel(models[row])).get_weights()
        expected = [own.get(client, first)[at] if at in kept else each for at, each in enumerate(shared)]
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=5e-5)
    assert rows[2] == rows[4] == rows[5] and len({*rows[:2], *rows[3:5]}) == 4
    assert np.abs(own[1][4] - own[3][4]).max() > 0.01


METHODS = {
    "ifca": {"parameters": IFCAParameters(num_clusters=2)},
    "flis_dc": {"server_images": own_data.patients()[0][:8]},
}


@pytest.mark.slow
@pytest.mark.parametrize("method, shards", [("fedavg", 2), *((each, None) for each in METHODS)])
def test_what_clients_keep_goes_through_resume_newcomers_and_export(
    tff_worker, tmp_path, capsys, without_forms, method, shards
):
    model, (train, test) = keeping("fedbn"), own_data.clinics(7)
    of_few = ({client: those[client] for client in list(those)[:6]} for those in (train, test))
    population = tffcl.Population.from_arrays(*of_few)
    later = {2: tffcl.Population.from_arrays(train, test, known=population)}
    made = getattr(tffcl.algorithms, f"build_{method}")(model, TRAINING, **METHODS.get(method, {}))

    def run(place, rounds, **more):
        return tffcl.train(
            made, population, rounds=rounds, clients_per_round=4, later=later, seed=3, shards=shards,
            out=tmp_path / place, **more,
        )  # fmt: skip

    whole = run("whole", 2)
    run("again", 2, until=1)
    again = run("again", 2, resume=True)
    assert capsys.readouterr().err.count("4 clients of a round compute in 2 shards of 2") == (3 if shards else 0)
    np.testing.assert_array_equal(whole.clients["local_log_loss"], again.clients["local_log_loss"])
    x = test["clinic_1"][0]
    for client in ("clinic_1", "clinic_6"):
        np.testing.assert_array_equal(whole.model_of(client), again.model_of(client))
        outputs = whole.keras_model_of(client)(x)
        np.testing.assert_allclose(whole.predict(client, x, probabilities=True), tf.nn.softmax(outputs), atol=1e-5)
    assert np.any(whole.model_of("clinic_0") != whole.model_of("clinic_1"))
    assert whole.summary["accuracy"]["global"]["mean"] is None  # there is no model for everyone
    assert whole.rounds["down_bytes"][0] <= 4 * 4 * (2 * model.size + 50)
    tffcl.export_result(whole, tmp_path / "export")
    saved = np.load(tmp_path / "export" / "state" / "models.npy")
    assert saved.shape[1] == model.whole.size > model.size


@pytest.mark.slow
def test_clients_that_are_grouped_again_keep_their_own(tff_worker, tmp_path):
    """After a round without groups; where no data have changed it is as if they were grouped once."""

    def models(**more):
        how = tffcl.algorithms.ComposedParameters(signature="subspace", num_clusters=2, when=1, **more)
        method = tffcl.algorithms.build_composed(keeping("fedbn"), TRAINING, how)
        result = tffcl.train(method, clinics(), rounds=3, clients_per_round=4, seed=3, out=tmp_path / str(len(more)))
        return np.stack([result.model_of(client) for client in result.clients["client_id"]])

    once = models()
    np.testing.assert_array_equal(models(regroup_every=1), once)
    assert len(np.unique(once[:, keeping("fedbn").own.parts.is_local], axis=0)) > 4


@pytest.mark.slow
def test_what_clients_keep_is_not_noised(tff_worker):
    """In the first round it is the same with and without privacy, and what they share is not."""
    noised = tffcl.aggregation("dp", noise_multiplier=1.0, clip=0.1)
    plain, private = (
        train(tffcl.algorithms.build_fedavg(keeping("fedbn"), TRAINING, **more), clinics(), [(0, 1, 2)])
        for more in ({}, {"aggregation": noised})
    )
    cohort = cohort_of(clinics(), (0, 1, 2), 1)
    for client in (0, 1, 2):
        mine = own_part(plain.optimizers.value(client))
        np.testing.assert_array_equal(own_part(private.optimizers.value(client)), mine)
        local, whole = clinics().train(client), keeping("fedbn").whole
        trained, *_ = build_local_sgd(whole, TRAINING)(whole.initial, local.x, local.y, cohort.client_seed(client))
        np.testing.assert_allclose(mine, trained.numpy()[keeping("fedbn").own.parts.is_local], atol=2e-5)
    assert np.abs(plain.models - private.models).max() > 1e-3


def of_one_layer(*stack):
    return tffcl.FlatModel.from_keras(
        sequential(*stack), CROSS_ENTROPY, spec([30], tf.float32), "net", statistics="fedbn"
    )


def by(method, **more):
    return lambda: getattr(tffcl.algorithms, f"build_{method}")(keeping("local"), TRAINING, **more)


def flis_by_the_server():
    how = tffcl.algorithms.FLISDCParameters(answered_by="server")
    return by("flis_dc", server_images=own_data.patients()[0][:3], parameters=how)()


KEEPS = 'of net each client keeps a part to itself; take statistics="global" or "reset"'


@pytest.mark.parametrize(
    "make, message",
    [
        (by("clove"), f"clove asks clients for their losses .*{KEEPS}"),
        (by("feddrift"), KEEPS),
        (by("flux"), f"after 5 rounds clients describe their data with one model, and {KEEPS}"),
        (by("flhc"), f"after 10 rounds clients describe their data with one model, and {KEEPS}"),
        (
            lambda: tffcl.algorithms.build_fedgroup(keeping("global"), TRAINING),
            'has statistics beside them, which would be those of before: take .* statistics="reset"',
        ),
        (by("fedem"), f"a client compares its losses under all models of a mixture, and {KEEPS}"),
        (by("fedsoft"), KEEPS),
        (by("rr_cluster"), KEEPS),
        (by("stocfl", parameters=StoCFLParameters(global_order="sequential")), KEEPS),
        (flis_by_the_server, KEEPS),
        (
            lambda: tffcl.learning.build_clustered_fed_avg(keeping("local"), 2, TRAINING),
            f"no more than a seed and their examples, and {KEEPS}",
        ),
        (lambda: keeping("mine"), r"unknown statistics 'mine' \(allowed: fedbn, global, local, reset\)"),
        (lambda: of_one_layer(layers.Dense(2, input_shape=(30,))), "the Keras model sequential.* has none that it"),
        (
            lambda: of_one_layer(layers.BatchNormalization(input_shape=(30,)), layers.Dense(2, trainable=False)),
            "has no trained weights but in layers with statistics",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_method_that_loses_what_clients_keep_is_refused(tff_worker, tmp_path):
    method = ByParity(keeping("local"), TRAINING)
    with pytest.raises(UserError, match="by_parity: its state has no optimizers after a round, in which clients keep"):
        tffcl.train(method, clinics(), rounds=1, clients_per_round=3, out=tmp_path / "run")


def test_what_clients_sign_by_training_has_no_statistics(monkeypatch):
    """They are in the unit of the data, and would decide alone who is like whom."""
    model, examples = keeping("global"), {"x": np.zeros([2, 30], np.float32), "y": np.zeros(2, np.int32)}
    assert model.has_statistics and 0 < np.sum(~model.is_trained) < model.size
    for file in (anchor_gradient, partial_weights):
        monkeypatch.setattr(file, "build_local_sgd", lambda *given: lambda vector, x, y, seed: (vector + 1.0,))
        monkeypatch.setattr(file, "build_signature", lambda name, spec, compute, **how: (compute, how["context"]))
    compute, context = anchor_gradient.build_anchor_gradient(model, form="displacement", projection=0)
    np.testing.assert_allclose(compute(context, examples), -1.0 * model.is_trained, atol=1e-6)
    name, place = next(each for each in model.layer_slices().items() if not model.is_trained[each[1]].all())
    compute, context = partial_weights.build_partial_weights(model, training=TRAINING, layers=[name])
    expected = (model.initial[place] + 1)[model.is_trained[place]]
    np.testing.assert_allclose(compute(context, examples), expected, atol=1e-6)
