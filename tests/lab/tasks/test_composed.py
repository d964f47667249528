"""Every signature with every local training: one table of a task file each, on real digits."""

import itertools
import pathlib
import random

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from tests.short_runs import cohort_of
from tffcl.algorithms.parameters import metrics_of
from tffcl.choices import GROUPINGS, WITH_WARD
from tffcl.errors import UserError
from tffcl.lab.cli import explain
from tffcl.lab.tasks import build as prepare
from tffcl.lab.tasks import resolve
from tffcl.lab.tasks.populations import build_population
from tffcl.registry import AGGREGATIONS, SIGNATURES, TRAININGS

TASK = pathlib.Path(__file__).parents[2] / "conformance" / "digits.toml"
# What suits few clients and small models.
SMALL = {
    "embedding": {
        "encoder": "digits",
        "encoder_epochs": 1,
        "encoder_examples": 200,
        "fine_tune_epochs": 1,
        "num_centres": 3,
    },
    "pca_centres": {"num_components": 16, "num_centres": 3},
    "anchor_gradient": {"projection": 256},
}


@pytest.fixture(scope="module")
def composed(tff_worker_of_module, tmp_path_factory):
    """Builds the composed method of a signature and a training, with its clients."""
    data_dir = str(tmp_path_factory.mktemp("data"))

    def build(signature, training):
        table = {
            "method": "composed",
            "signature": {"name": signature, **SMALL.get(signature, {})},
            "num_clusters": 2,
            "training": training,
        }
        asked = resolve.resolve(TASK, "mixed", overrides={"algorithms": {"mixed": table}})
        federated = prepare.load_data(asked, data_dir)
        model = prepare.build_model(asked, federated)
        return prepare.build_method(asked, model, federated, data_dir), build_population(federated)

    return build


@pytest.fixture(scope="module")
def tff_worker_of_module(worker):
    return worker.use_local_worker()


def _pairs():
    """By default two that differ most; in the slow tests each signature with one training, in turn:
    whoever trains is told the clusters alone."""
    quick = [("subspace", "sgd"), ("label_histogram", "scaffold")]
    others = [pair for pair in zip(SIGNATURES, itertools.cycle(TRAININGS)) if pair not in quick]
    return [*quick, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in others)]


@pytest.mark.parametrize("signature, training", _pairs())
def test_any_signature_goes_with_any_training(composed, signature, training):
    method, clients = composed(signature, training)
    state = method.initialize(clients)
    views = method.views(state)
    assert len(np.unique(views.clusters)) == 2 and views.metric.proximity.shape == (len(clients),) * 2
    chosen = clients.client_ids[views.clusters == views.clusters[0]]
    after, metrics = method.next(state, cohort_of(clients, chosen, 1))
    assert np.isfinite(metrics.losses).all()
    (before, was), (models, rows) = (method.models_for(each, clients.client_ids) for each in (state, after))
    moved = np.abs(models[rows] - before[was]).max(axis=1)
    assert (moved[np.isin(clients.client_ids, chosen)] > 1e-4).all()
    np.testing.assert_array_equal(moved[~np.isin(clients.client_ids, chosen)], 0)


def test_what_is_listed_is_what_there_is():
    for kind, names in (("trainings", TRAININGS), ("signatures", SIGNATURES), ("aggregations", AGGREGATIONS)):
        for name in names:
            assert len(explain.explain(kind, name)) >= 2
    assert any(
        "option (" in line and "difference, gradient" in line for line in explain.explain("trainings", "scaffold")
    )
    assert any("num_vectors (3; a whole number from 1)" in line for line in explain.explain("signatures", "subspace"))


def test_what_goes_together_is_listed_and_why_something_does_not():
    (line,) = (line for line in explain.explain("algorithms", "composed") if line.startswith("  outputs: "))
    assert "wasserstein with hierarchical, density, spectral" in line and "decomposed_cosine with any" in line
    *_, vectors = explain.explain("signatures", "subspace")
    assert vectors.startswith("  not gaussian_mixture by smallest_angle, angle_sum, trace, smallest_entry: ")
    assert not any(line.startswith("  not ") for line in explain.explain("signatures", "label_histogram"))
    assert len(explain.explain("groupings", "kmeans")) == 3
    *_, controls, once, plain, _ = itertools.takewhile(
        lambda line: line != "[train]", explain.explain("algorithms", "composed")
    )
    assert controls.startswith("  not any grouping with scaffold with when = N or regroup_every or regroup_on: ")
    assert once.startswith("  not soft with sgd with as_they_join or when = N or") and "formed once" in once
    assert plain.startswith("  not soft with proximal or fednova or scaffold or ditto or lg_fedavg or per_fedavg with")


def _drawn(rng: random.Random) -> dict:
    """A table of a composed method whose parts need not go together, though many do."""
    signature = rng.choice(list(SIGNATURES))
    cut = rng.choice(["num_clusters"] * 5 + ["threshold"] * 2)
    options = {
        "metric": (0.4, [*metrics_of(signature)] * 4 + [metric for each in SIGNATURES for metric in metrics_of(each)]),
        "linkage": (0.1, list(WITH_WARD)),
        "threshold": (0.9 if cut == "threshold" else 0.05, [0.0, 0.5, 20.0, "self", "gap"]),
        "num_clusters": (0.9 if cut == "num_clusters" else 0.05, [1, 2, 2, 3, 3, 50]),
        "temperature": (0.1, [1e-6, 1.0]),
        "when": (0.3, ["as_they_join", "before_training", 1, 2, 2, 0]),
        "regroup_every": (0.2, [1, 2]),
        "regroup_on": (0.2, [{"signal": "loss"}, {"signal": "signature", "bound": 0.01}, {"signal": "none"}]),
        "training": (0.5, list(TRAININGS)),
    }
    drawn = {key: rng.choice(values) for key, (often, values) in options.items() if rng.random() < often}
    table = {"method": "composed", "signature": {"name": signature, **SMALL.get(signature, {})}}
    return {**table, "grouping": rng.choice(list(GROUPINGS)), **drawn}


@pytest.mark.slow
def test_compositions_by_chance_run_or_are_refused_in_one_line(tff_worker_of_module, tmp_path):
    rng, ran = random.Random(1), []
    for number in range(40):
        table = _drawn(rng)
        try:
            asked = resolve.resolve(TASK, "mixed", overrides={"algorithms": {"mixed": table}})
            federated = prepare.load_data(asked, str(tmp_path))
            method = prepare.build_method(asked, prepare.build_model(asked, federated), federated, str(tmp_path))
            clients = build_population(federated)
            state = method.initialize(clients)
            before, _ = method.models_for(state, clients.client_ids)
            for round_number in (1, 2, 3):
                state, metrics = method.next(state, cohort_of(clients, clients.client_ids[:8], round_number))
        except UserError as error:
            print(number, "refused:", table, error)
            assert len(str(error).splitlines()) == 1 and len(str(error)) > 20
            continue
        models, _ = method.models_for(state, clients.client_ids)
        print(number, "ran:", table, method.views(state).notes)
        assert np.isfinite(models).all() and np.isfinite(metrics.losses).all() and len(metrics.losses) == 8
        assert np.abs(models[0] - before[0]).max() > 1e-4
        ran.append(number)
    assert 8 <= len(ran) <= 32


@pytest.mark.slow
@pytest.mark.parametrize(
    "table, least",
    [
        ({"method": "given"}, 1.0),
        ({"method": "fedgroup", "num_clusters": 4}, 0.95),
        ({"method": "kfed", "num_clusters": 4}, 0.6),
        ({"method": "emd_cfl"}, 0.75),
        ({"signature": "partial_weights", "grouping": "gaussian_mixture", "num_clusters": 4}, 0.95),
        ({"signature": "subspace", "grouping": "spectral", "num_clusters": 4}, 0.95),
        ({"signature": "subspace", "grouping": "density"}, 0.7),
    ],
)
def test_what_groupings_find_of_forty_clients_in_four_rotations(tff_worker_of_module, tmp_path, table, least):
    """On scikit-learn's digits, some thirty a client."""
    asked = resolve.resolve("demo_digits", "mine", overrides={"algorithms": {"mine": {"method": "composed", **table}}})
    federated = prepare.load_data(asked, str(tmp_path))
    method = prepare.build_method(asked, prepare.build_model(asked, federated), federated, str(tmp_path))
    clients = build_population(federated)
    state = method.initialize(clients)
    for number in (1, 2):  # of which the first may be a warm-up
        state, _ = method.next(state, cohort_of(clients, clients.client_ids, number))
    assert adjusted_rand_score(clients.groups, method.views(state).clusters) >= least


@pytest.mark.slow
def test_trainings_of_the_same_groups_differ(composed):
    """The grouping is the same, what is learned is not."""
    learned = {}
    for training in ("sgd", {"name": "proximal", "proximal_weight": 1.0}, "scaffold"):
        method, clients = composed("label_histogram", training)
        state = method.initialize(clients)
        for number in (1, 2):
            state, _ = method.next(state, cohort_of(clients, clients.client_ids, number))
        learned[str(training)] = state.models
    plain, *others = learned.values()
    assert all(np.abs(plain - each).max() > 1e-3 for each in others)


@pytest.mark.parametrize(
    "training, message",
    [
        ("scafold", "training 'scafold'.*scaffold"),
        ({"name": "sgd", "proximal_weight": 1.0}, "training sgd has no parameters of its own; found proximal_weight"),
        ({"name": "proximal", "weight": 1.0}, "unknown key in .training proximal. 'weight'.*proximal_weight"),
        ({"name": "scaffold", "option": "third"}, "training scaffold.option 'third'.*gradient"),
        ({"proximal_weight": 1.0}, "it must be a name, or a table with name"),
    ],
)
def test_a_wrong_training_is_one_line_before_anything_is_loaded(training, message):
    table = {"method": "composed", "training": training}
    with pytest.raises(UserError, match=message) as said:
        resolve.resolve(TASK, "mixed", overrides={"algorithms": {"mixed": table}})
    assert "\n" not in str(said.value)
