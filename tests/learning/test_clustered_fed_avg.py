"""The process for users of `tff.learning`: against this library's IFCA and local training, and in TFF's programs."""

import asyncio
import collections
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.ifca import build_ifca
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError
from tffcl.export.deployment_forms import missing_on_devices, operations_of
from tffcl.learning.clustered_fed_avg import build_choose, build_clustered_fed_avg, own_seed
from tffcl.models.flat import FlatModel, mean_cross_entropy

# The order of the examples plays no part.
WHOLE = LocalTraining(epochs=3, batch_size=0, learning_rate=0.2, momentum=0.5)
SEED = 11


def batched(examples: tf.data.Dataset, size: int = 7) -> tf.data.Dataset:
    """A client's examples in the form in which users of `tff.learning` have them."""
    return examples.batch(size).map(lambda batch: (batch["x"], batch["y"]))


@pytest.fixture(scope="module")
def turned(digit_clients):
    """Six clients, of whom each second one holds its digits upside down."""
    return digit_clients([31, 40, 25, 50, 12, 33], turns=[0, 2, 0, 2, 0, 2])


@pytest.fixture(scope="module")
def data(turned):
    return [batched(turned.train(client).dataset) for client in turned.client_ids]


@pytest.fixture(scope="module")
def process(model):
    """Two models on batches."""
    return build_clustered_fed_avg(model, 2, WHOLE, seed=SEED)


@pytest.fixture(scope="module")
def alone(model):
    """One model."""
    return build_clustered_fed_avg(model, 1, TRAINING, seed=SEED)


@pytest.fixture(scope="module")
def ours(worker, model, turned):
    """Three rounds of the library's own IFCA: the state and each round's metrics."""
    worker.use_local_worker()
    method = build_ifca(model, WHOLE, IFCAParameters(num_clusters=2), seed=SEED)
    state, told = method.initialize(turned), []
    for number, clients in enumerate(ROUNDS, 1):
        state, metrics = method.next(state, cohort_of(turned, clients, number))
        told.append(metrics)
    return state, told


ROUNDS = ((0, 1, 2, 3, 4, 5), (0, 1, 3), (2, 3, 4, 5))


def run(process, data, rounds=ROUNDS):
    state, told = process.initialize(), []
    for clients in rounds:
        state, metrics = process.next(state, [data[client] for client in clients])
        told.append(metrics)
    return state, told


class TestAgainstIFCA:
    def check(self, result, ours):
        (state, told), (expected, metrics) = result, ours
        np.testing.assert_allclose(state.global_model_weights, expected.models, rtol=0, atol=1e-6)
        assert len({int(cluster) for each in metrics for cluster in each.clusters}) == 2
        for theirs, each in zip(told, metrics, strict=True):
            train = theirs["client_work"]["train"]
            np.testing.assert_array_equal(train["clients_per_cluster"], np.bincount(each.clusters, minlength=2))
            assert train["num_examples"] == each.examples.sum() and train["clients_not_finite"] == 0
            assert train["loss"] == pytest.approx(np.average(each.losses, weights=each.examples), rel=1e-5)

    def test_batches(self, tff_worker, process, data, ours):
        self.check(run(process, data), ours)

    @pytest.mark.slow
    def test_the_form_of_the_data_does_not_matter(self, tff_worker, model, turned):
        """Batches of pairs; named batches of a fixed size; single examples; labels of another type."""

        def named(examples):
            return collections.OrderedDict(x=examples["x"], y=tf.cast(examples["y"], tf.int64))

        few = [turned.train(client).dataset.take(20) for client in (0, 1)]
        pairs = [batched(each, 3) for each in few]
        fixed = [each.batch(5, drop_remainder=True).map(named) for each in few]
        single = [each.map(named) for each in few]
        assert fixed[0].element_spec["x"].shape[0] == 5
        models = []
        for data, spec in ((pairs, None), (fixed, fixed[0].element_spec), (single, single[0].element_spec)):
            process = build_clustered_fed_avg(model, 2, TRAINING, element_spec=spec, seed=1)
            models.append(run(process, data, rounds=[(0, 1)])[0].global_model_weights)
        np.testing.assert_array_equal(models[0], models[1])
        np.testing.assert_array_equal(models[0], models[2])


class TestAgainstLocalTraining:
    """Which is TFF's, as tests/rounds/test_server_optimizer.py has it."""

    def test_one_model_is_the_mean_of_what_clients_train_on_batches_by_their_seeds(
        self, tff_worker, model, alone, population
    ):
        """By the seeds that the docstring tells."""
        state, expected, sgd = alone.initialize(), model.initial, build_local_sgd(model, TRAINING)
        for number, clients in enumerate(COHORTS[1:], 1):
            data = [population.train(each) for each in clients]
            state, metrics = alone.next(state, [batched(each.dataset) for each in data])
            seeds = [own_seed(np.int32([SEED, number]), each.dataset) for each in data]
            trained = [sgd(expected, each.x, each.y, seed)[0] for each, seed in zip(data, seeds, strict=True)]
            expected = np.average(trained, axis=0, weights=[len(each) for each in data]).astype(np.float32)
        assert np.abs(state.global_model_weights[0] - model.initial).max() > 0.05
        assert_close(state.global_model_weights[0], expected)
        assert metrics["client_work"]["train"]["clients_per_cluster"].tolist() == [3]

    @pytest.mark.slow
    def test_clients_count_alike_if_told(self, tff_worker, model, population):
        how = tff.learning.ClientWeighting.UNIFORM
        process = build_clustered_fed_avg(model, 1, TRAINING, client_weighting=how, seed=SEED)
        data, sgd = [population.train(client) for client in (3, 4)], build_local_sgd(model, TRAINING)
        state = process.next(process.initialize(), [batched(each.dataset) for each in data]).state
        trained = [sgd(model.initial, each.x, each.y, own_seed(np.int32([SEED, 1]), each.dataset))[0] for each in data]
        assert_close(state.global_model_weights[0], np.mean(trained, axis=0))
        assert np.abs(np.average(trained, axis=0, weights=[50, 12]) - np.mean(trained, axis=0)).max() > 1e-3


class TestState:
    def test_types(self, model, process):
        state = process.initialize.type_signature.result.member
        assert state.python_container is tff.learning.templates.LearningAlgorithmState
        assert str(state.global_model_weights) == f"float32[2,{model.size}]"
        assert str(state.client_work) == "<seed=int32,round_num=int32>"
        assert str(process.next.type_signature.parameter[1]) == "{<uint8[?,8,8,1],int32[?]>*}@CLIENTS"

    @pytest.mark.slow
    def test_weights_go_round(self, tff_worker, model, process, data):
        state, _ = run(process, data, ROUNDS[:1])
        weights = process.get_model_weights(state)
        assert [type(each) for each in weights] == [tff.learning.models.ModelWeights] * 2
        np.testing.assert_array_equal([model.ravel(each.trainable) for each in weights], state.global_model_weights)
        again = process.set_model_weights(process.initialize(), weights[::-1])
        np.testing.assert_array_equal(again.global_model_weights, state.global_model_weights[::-1])
        assert isinstance(again, tff.learning.templates.LearningAlgorithmState) and again.client_work["round_num"] == 0
        assert process.next(again, data).state.client_work == {"seed": SEED, "round_num": 1}

    @pytest.mark.parametrize("given", [1, 3])
    def test_weights_of_fewer_or_more_models_are_refused(self, process, given):
        with pytest.raises(UserError, match=rf"weights has {given} models?; it must have 2, num_clusters"):
            process.set_model_weights(None, (None,) * given)

    @pytest.mark.slow
    def test_what_clients_draw_follows_from_seed_round_and_examples(self, tff_worker, alone, data):
        start = alone.initialize()
        later = start._replace(client_work={**start.client_work, "round_num": 1})
        other = start._replace(client_work={**start.client_work, "seed": 1})
        first, again, second, third = (
            alone.next(each, data[:3]).state.global_model_weights for each in (start, start, later, other)
        )
        np.testing.assert_array_equal(first, again)
        assert min(np.abs(first - second).max(), np.abs(first - third).max(), np.abs(second - third).max()) > 1e-6

    def test_seeds_of_clients_differ_by_their_examples_alone(self):
        """Also where all labels are one, or the images have the same numbers at other places."""
        images = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8, 1)
        several = [
            images,
            images[::-1],
            images.transpose(0, 2, 1, 3),
            images + 1,
            images.astype(np.float32),
            images[:3],
        ]

        def seed_of(x):
            examples = {"x": tf.constant(x), "y": tf.fill([len(x)], 7)}
            return tuple(own_seed(np.int32([3, 1]), tf.data.Dataset.from_tensor_slices(examples)).numpy())

        seeds = [seed_of(x) for x in several]
        assert len(set(seeds)) == len(several) - 1 and seeds[0] == seeds[4]  # the same numbers in another type

    def test_seeds_of_clients_differ(self, turned):
        seeds = {tuple(own_seed(np.int32([3, 1]), turned.train(each).dataset).numpy()) for each in turned.client_ids}
        assert len(seeds) == 6

    @pytest.mark.slow
    def test_a_client_whose_training_is_not_finite_is_left_out(self, tff_worker, turned):
        """Of floats, one of which is infinite; the others go on as without it."""
        functional = tff.learning.models.FunctionalModel(
            initial_weights=((np.zeros([4, 3], np.float32),), ()),
            predict_on_batch_fn=tf.function(lambda weights, x, training: tf.matmul(x, weights[0][0])),
            loss_fn=mean_cross_entropy,
            input_spec=(tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32)),
        )
        process = build_clustered_fed_avg(FlatModel.from_functional(functional), 1, WHOLE)
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=[3, 10, 4]).astype(np.float32), rng.integers(0, 3, [3, 10]).astype(np.int32)
        x[1, 0] = np.inf
        clients = [tf.data.Dataset.from_tensor_slices(each).batch(10) for each in zip(x, y)]
        state, metrics = process.next(process.initialize(), clients)
        expected = process.next(process.initialize(), [clients[0], clients[2]])
        np.testing.assert_allclose(state.global_model_weights, expected.state.global_model_weights, atol=1e-7)
        train, good = (each["client_work"]["train"] for each in (metrics, expected.metrics))
        assert train["clients_not_finite"] == 1 and train["num_examples"] == 20
        assert train["loss"] == pytest.approx(good["loss"], rel=1e-6)


class TestServerOptimizer:
    @pytest.mark.slow
    def test_sgd_with_rate_one_adds_the_mean(self, tff_worker, model, data, ours):
        process = build_clustered_fed_avg(model, 2, WHOLE, tff.learning.optimizers.build_sgdm(1.0), seed=SEED)
        np.testing.assert_allclose(run(process, data)[0].global_model_weights, ours[0].models, rtol=0, atol=2e-6)

    @pytest.mark.slow
    def test_its_hyper_parameters_can_be_read_and_set(self, tff_worker, model, process, data):
        slow = build_clustered_fed_avg(model, 2, WHOLE, tff.learning.optimizers.build_sgdm(1.0, 0.5), seed=SEED)
        state = slow.initialize()
        hparams = slow.get_hparams(state)
        assert hparams == {"client_work": {}, "finalizer": {"learning_rate": 1.0, "momentum": 0.5}}
        hparams["finalizer"]["learning_rate"] = 0.25
        state = slow.set_hparams(state, hparams)
        assert slow.get_hparams(state)["finalizer"]["learning_rate"] == 0.25
        moved = slow.next(state, data).state.global_model_weights - state.global_model_weights
        plain = process.next(process.initialize(), data).state.global_model_weights - state.global_model_weights
        assert np.abs(plain).max(axis=1).min() > 0.01
        np.testing.assert_allclose(moved, 0.25 * plain, atol=1e-6)

    def test_without_one_there_are_none(self, tff_worker, process):
        state = process.initialize()
        assert process.get_hparams(state) == {"client_work": {}, "finalizer": {}}
        again = process.set_hparams(state, process.get_hparams(state))
        np.testing.assert_array_equal(again.global_model_weights, state.global_model_weights)


class TestAggregators:
    def moves(self, process, data):
        start = process.initialize()
        state, metrics = process.next(start, data)
        return state.global_model_weights - start.global_model_weights, metrics["client_work"]["train"][
            "clients_per_cluster"
        ]

    @pytest.mark.slow
    def test_a_robust_mean_inside_the_clusters(self, tff_worker, model, process, data):
        """One that clips nobody is the mean; a cluster that nobody chose keeps its model there too."""
        robust = tff.aggregators.clipping_factory(1000.0, tff.aggregators.MeanFactory())
        inside = ClusteredMeanFactory(2, robust)
        moves, clients = self.moves(
            build_clustered_fed_avg(model, 2, WHOLE, model_aggregator=inside, seed=SEED), data[:1]
        )
        assert sorted(clients.tolist()) == [0, 1]
        np.testing.assert_array_equal(moves[clients == 0], 0)
        np.testing.assert_allclose(moves, self.moves(process, data[:1])[0], atol=1e-5)

    @pytest.mark.slow
    def test_tffs_own_robust_aggregator_runs(self, tff_worker, model, data):
        inside = ClusteredMeanFactory(2, tff.learning.robust_aggregator())
        process = build_clustered_fed_avg(model, 2, WHOLE, model_aggregator=inside, seed=SEED)
        state, _ = run(process, data)
        assert np.isfinite(state.global_model_weights).all()

    @pytest.mark.slow
    def test_secure_sums_hide_who_chose_what(self, worker, model, data, ours):
        """In TFF's test runtime, the only one of its own that has secure sums."""
        bound = 2.0**20
        secure = tff.aggregators.SecureSumFactory
        inner = tff.aggregators.MeanFactory(secure(50.0), secure(bound), no_nan_division=True)
        process = build_clustered_fed_avg(
            model,
            2,
            WHOLE,
            model_aggregator=ClusteredMeanFactory(2, inner),
            metrics_aggregator=secure(bound),
            seed=SEED,
        )
        serialized = tff.framework.serialize_computation(process.next).SerializeToString()
        up = set(re.findall(rb"federated_(?!apply|broadcast|eval_at|map|value_at|zip_at)\w+", serialized))
        assert up == {b"federated_secure_sum_bitwidth"}  # nothing goes another way than through the secure sums
        tff.backends.test.set_sync_test_cpp_execution_context()
        try:
            _, metrics = process.next(process.initialize(), data)
        finally:
            worker.use_local_worker()
        train = metrics["client_work"]["train"]
        np.testing.assert_array_equal(train["clients_per_cluster"], np.bincount(ours[1][0].clusters, minlength=2))
        assert train["num_examples"] == 191


@pytest.fixture(scope="module")
def form(process):
    """The process's MapReduceForm."""
    return tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)


class TestForms:
    @pytest.mark.slow
    def test_rebuilt_from_its_map_reduce_form(self, tff_worker, worker, form, process, data):
        state = process.initialize()
        direct, metrics = process.next(state, data)
        rebuilt = tff.backends.mapreduce.get_computation_for_map_reduce_form(form)
        tff.backends.test.set_sync_test_cpp_execution_context()
        try:
            again, told = rebuilt(state, data)
        finally:
            worker.use_local_worker()
        np.testing.assert_allclose(again["global_model_weights"], direct.global_model_weights, atol=1e-6)
        train = told["client_work"]["train"]
        assert train["loss"] == pytest.approx(metrics["client_work"]["train"]["loss"])
        assert again["client_work"] == direct.client_work  # a form keeps names, not Python's classes

    def test_clients_upload_no_report_and_need_nothing_that_devices_lack(self, model, form):
        work = form.work
        sent = f"<upload=<key=int32,value=float32[{model.size}]>,weight=float32>"
        assert (
            str(work.type_signature.result[0])
            == f"<{sent},<loss=float32,examples=float32,clients=float32[2],not_finite=float32>>"
        )
        assert not missing_on_devices(operations_of(work))

    @pytest.mark.slow
    def test_sums_inside_the_clusters_have_tffs_other_form_too(self, model):
        inside = ClusteredMeanFactory(2, tff.aggregators.MeanFactory())
        process = build_clustered_fed_avg(model, 2, WHOLE, model_aggregator=inside)
        form = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(process.next)
        assert (
            b"federated_sum"
            in tff.framework.serialize_computation(form.client_to_server_aggregation).SerializeToString()
        )


class Clients(tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator):
    """The clients of a `ClientData`, by ID: TFF's own source of data sets cannot be copied, as its program does."""

    held: tff.simulation.datasets.ClientData

    def __init__(self, asked: int = 0):
        self.asked = asked

    @property
    def federated_type(self):
        return tff.FederatedType(
            tff.SequenceType(tff.types.tensorflow_to_type(self.held.element_type_structure)), tff.CLIENTS
        )

    def iterator(self):
        return self

    def select(self, k=None):
        chosen = ROUNDS[self.asked][:k]
        self.asked += 1
        return [self.held.create_tf_dataset_for_client(f"writer_{client}") for client in chosen]

    def to_bytes(self):
        return bytes([self.asked])

    @classmethod
    def from_bytes(cls, buffer):
        return cls(buffer[0])


@pytest.fixture
def in_program(worker):
    """TFF's federated context for programs, over this library's worker."""
    stub = worker.connect(worker.use_local_worker().target)
    context = tff.framework.AsyncExecutionContext(**worker.context_options(stub))
    with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
        yield


@pytest.mark.slow
def test_it_runs_in_tffs_program(in_program, process, turned, ours, tmp_path):
    """`train_model` on TFF's ClientData, ended after two rounds and gone on with from its file."""
    arrays = {
        f"writer_{client}": next(turned.train(client).dataset.batch(1000).as_numpy_iterator()) for client in range(6)
    }
    Clients.held = tff.simulation.datasets.TestClientData(arrays).preprocess(batched)
    states = tff.program.FileProgramStateManager(str(tmp_path))
    metrics, models = tff.program.MemoryReleaseManager(), tff.program.MemoryReleaseManager()
    for rounds in (2, 3):
        program = tff.learning.programs.train_model(
            train_process=process, train_data_source=Clients(), train_per_round_clients=6, train_total_rounds=rounds,
            program_state_manager=states, model_output_manager=models, train_metrics_manager=metrics,
            evaluation_manager=None, evaluation_periodicity=1,
        )  # fmt: skip
        asyncio.run(program)
    state = models.values()["training_checkpoint_round_3"]
    np.testing.assert_allclose(state.global_model_weights, ours[0].models, rtol=0, atol=1e-6)
    told = [metrics.values()[number]["model_metrics"]["clients_per_cluster"].tolist() for number in (1, 2, 3)]
    assert told == [np.bincount(each.clusters, minlength=2).tolist() for each in ours[1]]


class TestChoice:
    def test_it_is_that_of_training(self, tff_worker, model, process, data, turned, ours):
        method = build_ifca(model, WHOLE, IFCAParameters(num_clusters=2), seed=SEED)
        expected = method.choose(ours[0], turned).assignment
        state = process.initialize()._replace(global_model_weights=ours[0].models)
        weights, choose = process.get_model_weights(state), build_choose(model, 2)
        found = [choose(weights, each) for each in data]
        assert [each["cluster"] for each in found] == expected.tolist()
        for each in found:
            assert each["cluster"] == np.argmin(each["losses"])
            np.testing.assert_array_equal(model.ravel(each["model_weights"].trainable), ours[0].models[each["cluster"]])

    @pytest.mark.slow
    def test_every_client_gets_its_model_in_a_federated_evaluation(self, tff_worker, model, process, data):
        choose = build_choose(model, 2)
        weights_type, data_type = choose.type_signature.parameter

        @tff.tensorflow.computation(choose.type_signature.result, data_type)
        def evaluate(chosen, batches):
            weights = chosen["model_weights"].trainable, chosen["model_weights"].non_trainable

            def right(total, batch):
                answers = tf.argmax(model.functional.predict_on_batch(weights, batch[0], False), 1, tf.int32)
                return total + tf.reduce_sum(tf.cast(tf.equal(answers, batch[1]), tf.float32))

            return batches.reduce(0.0, right)

        @tff.federated_computation(
            tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(data_type, tff.CLIENTS)
        )
        def evaluation(weights, clients):
            chosen = tff.federated_map(choose, (tff.federated_broadcast(weights), clients))
            return tff.federated_sum(tff.federated_map(evaluate, (chosen, clients)))

        state, _ = run(process, data)
        right = evaluation(process.get_model_weights(state), data)
        assert 191 * 0.15 < right <= 191  # better than by chance
