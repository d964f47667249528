"""The accuracies and other metrics `cluster` and `global`. Each model answers each distinct test image once; the
answers are then gathered for each client.
"""

import collections
import functools
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.client_work.evaluation import FEW, build_outputs, build_predict
from tffcl.clients.client_examples import PooledExamples, chosen
from tffcl.clients.population import Population
from tffcl.errors import Diverged, UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import session_function
from tffcl.models.metrics import METRICS, Answers, compute
from tffcl.models.model_rows import Assigned, assigned
from tffcl.models.objectives import CLASSES, NUMBERS
from tffcl.runs.cluster_history import largest_clusters
from tffcl.runs.metrics import OF_ROUNDS, rows_of
from tffcl.trace_cache import built_once

_IMAGES_AT_A_TIME = 5000
_MOST_CLASSES = 100  # in a confusion matrix
_DIGESTED = 2**16  # words of a model that a digest takes at a time


@built_once
def build_answering(model: FlatModel, *, whole: bool = False) -> tff.Computation:
    """Builds inference on images as a federated computation, which the runtime spreads over workers.

    Args:
      model: The architecture.
      whole: Whether it returns the model's outputs instead of its predictions.

    Returns:
      `({<item=int32,model=float32[P],x=uint8[?,...]>}@CLIENTS -> {<item=int32,answers=int32[?]>}@CLIENTS)`.
    """
    predict = (build_outputs if whole else build_predict)(model)
    item_type = tff.to_type(
        collections.OrderedDict(
            item=np.int32, model=tff.TensorType(np.float32, [model.size]), x=tff.types.tensorflow_to_type(model.x_spec)
        )
    )

    @tff.tensorflow.computation(item_type)
    def answer(item):
        return collections.OrderedDict(item=tf.identity(item["item"]), answers=predict(item["model"], item["x"]))

    @tff.federated_computation(tff.FederatedType(item_type, tff.CLIENTS))
    def answering(items):
        return tff.federated_map(answer, items)

    return answering


@built_once
def _build_predict_here(model: FlatModel, *, whole: bool = False):
    """Builds `build_predict`, or `build_outputs`, as a function of arrays in this process."""
    predict = (build_outputs if whole else build_predict)(model, few=True)
    return session_function(predict, tf.TensorSpec([model.size]), model.x_spec)


@built_once
def _build_mixing(model: FlatModel):
    """Builds `(outputs [K, n, ...], weights [K]) -> (outputs [n, ...], predictions [n, ...])` of a mixture of K models
    as a function of arrays in this process."""

    def mixing(outputs, weights):
        mixed = model.objective.mixed(outputs, weights)
        return mixed, model.objective.predictions(mixed)

    outputs = tf.TensorSpec([None, None, *model.objective.outputs])
    return session_function(mixing, outputs, tf.TensorSpec([None]))


@built_once
def _build_meaning(model: FlatModel):
    """Builds `outputs [n, ...] -> (predictions, probabilities or numbers)` as a function of arrays in this process."""
    objective = model.objective

    def meaning(outputs):
        predictions = objective.predictions(outputs)
        if objective.probabilities is None:
            return predictions, predictions
        # In float32 a probability near 1 leaves 0 for the others, whose log loss is infinite. A user's own function may
        # take float32 only.
        own = objective.activation in (tf.identity, tf.nn.softmax, tf.sigmoid)
        return predictions, objective.probabilities(tf.cast(outputs, tf.float64) if own else outputs)

    return session_function(meaning, tf.TensorSpec([None, *objective.outputs]))


def answers_of(model: FlatModel, labels: np.ndarray, outputs: np.ndarray) -> Answers:
    """Returns what a model answers on examples, for metrics.

    Args:
      model: The architecture.
      labels: `[n, ...]`.
      outputs: The model's outputs for the examples, `float32 [n, ...]`, see `Objective.outputs`.

    Raises:
      Diverged: If they are not finite.
    """
    predictions, means = _build_meaning(model)(outputs)
    if model.objective.label_kind == CLASSES:
        counted = model.objective.counted(labels).numpy()
        found = labels[counted], predictions[counted], means[counted]
    else:
        flat = [len(labels), math.prod(labels.shape[1:])] if labels.ndim > 1 else [len(labels)]
        found = [np.reshape(each, flat) for each in (labels, predictions, means)]
    if not np.isfinite(found[-1]).all():
        raise Diverged(
            f"{model.name} answers with numbers that are not finite: a lower learning_rate or momentum helps, or "
            "scaling the features"
        )
    if model.objective.label_kind == NUMBERS:  # their squares may be beyond float32
        found = [each.astype(np.float64) for each in found]
    return Answers(*found)


def check_tokens(model: FlatModel, population: Population):
    """Tries a model of whole numbers, which may be tokens, on the examples with the smallest and the largest number.

    Raises:
      UserError: If it cannot be computed on them; the message names the client and what is allowed.
    """
    kinds = [leaf.dtype for leaf in tf.nest.flatten(model.example_spec["x"])]
    inputs = [number for number, kind in enumerate(kinds) if kind.is_integer and kind != tf.uint8]  # uint8: images
    extremes = {}
    for client, x in _held(population) if inputs else ():
        for number in inputs:
            tokens = tf.nest.flatten(x)[number]
            for beyond, place in ((np.less, tokens.argmin()), (np.greater, tokens.argmax())) if tokens.size else ():
                key = number, beyond
                if key not in extremes or beyond(tokens.flat[place], extremes[key][0]):
                    extremes[key] = tokens.flat[place], client, chosen(x, [place // tokens[0].size])
    for _, client, example in extremes.values():
        try:
            _build_predict_here(model)(model.initial, example)
        except tf.errors.InvalidArgumentError as error:
            raise not_taken(model, f"client {population.name_of(client)}", error) from None


def _held(population: Population):
    """Yields each client with its training examples, then with its test examples."""
    # Of very many clients whose examples are read when needed, only those are tried that were read before.
    trained = population.read_before if population.sizes is None else population.client_ids
    yield from ((client, population.train(client).x) for client in trained)
    tested = population.evaluated
    tests = tested.pooled_tests
    for client, index in zip(tested.client_ids, tests.indices, strict=True):
        yield client, chosen(tests.x, index)


def not_taken(model: FlatModel, who: str, error: tf.errors.InvalidArgumentError) -> UserError:
    """Returns the error for examples that TensorFlow cannot compute a model on, e.g. an unknown token."""
    token = re.search(r"indices\S* = (-?\d+) is not in \[(-?\d+), (-?\d+)\)", error.message)
    if token is None:
        return UserError(
            f"{model.name} cannot be computed on the examples of {who}: {' '.join(error.message.split())[:200]}"
        )
    value, first, end = map(int, token.groups())
    return UserError(f"{who} has the token {value}; {model.name} takes tokens from {first} to {end - 1}")


class Evaluator:
    """Evaluates models on a pool of test images that clients share.

    The numbers are the same as if every client evaluated on its own copy (a test shows this), at a lower cost.
    """

    def __init__(self, model: FlatModel, population: Population, *, tests: PooledExamples | None = None):
        """Prepares the evaluation.

        Args:
          model: The architecture.
          population: The clients whose test examples count; row i of all results is its i-th.
          tests: Examples to evaluate on instead of the test examples, e.g. validation examples.
        """
        self._pool, self._answered = tests, {}
        self.model, self._population = model, population
        self._slots = runtime.WorkerSettings().cores  # how many inferences run at a time
        self._whole = bool(model.metrics_of_outputs)

    @property
    def _tests(self) -> PooledExamples:
        return self._population.pooled_tests if self._pool is None else self._pool

    @functools.cached_property
    def _counted(self) -> np.ndarray:
        """Which labels of the pool count, `bool` of their shape; none if a label cannot be right or wrong."""
        if not self.model.objective.has_accuracy:
            return np.zeros(self._tests.y.shape, bool)
        return self.model.objective.counted(self._tests.y).numpy()

    def answers(
        self, models: np.ndarray, wanted: Mapping[int, np.ndarray], whole: bool | None = None
    ) -> dict[int, np.ndarray]:
        """Returns the answers of models on images; answers that the call before has computed are not computed again.

        Args:
          models: `float32 [K, P]`.
          wanted: Maps the row of a model to the images of the pool that it must answer.
          whole: Whether to return outputs instead of predictions; default: if further metrics need them.

        Returns:
          For each of these rows the model's predictions for its images, or its outputs.
        """
        objective, whole = self.model.objective, self._whole if whole is None else whole
        shape, dtype = objective.label.shape, objective.label.dtype.as_numpy_dtype
        if whole:
            shape, dtype = objective.outputs, np.float32
        keys = {row: (_digest(models[row], images), whole) for row, images in wanted.items()}
        unanswered = {row: images for row, images in wanted.items() if keys[row] not in self._answered}
        result = {row: np.zeros([len(images), *shape], dtype) for row, images in unanswered.items()}
        for row, places, answers in self._answers(models, unanswered, whole):
            result[row][places] = answers
        result |= {row: self._answered[keys[row]] for row in wanted.keys() - unanswered.keys()}
        self._answered = {keys[row]: answers for row, answers in result.items()}
        return result

    def correct(self, models: np.ndarray, wanted: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Returns for each row of `wanted` (see `answers`) how many of the labels that count are right for each of its
        images, `float [n]`."""
        found = {}
        for row, answers in self.answers(models, wanted).items():
            images = wanted[row]
            predictions = _build_meaning(self.model)(answers)[0] if self._whole else answers
            right = (predictions == self._tests.y[images]) & self._counted[images]
            found[row] = (
                right.reshape(len(right), -1).sum(axis=1).astype(float) if right.size else np.zeros(len(images))
            )
        return found

    def _answers(self, models, unanswered, whole: bool):
        """Yields `(row, places among the row's images, answers)`; the images of one row may come in several pieces."""
        here, there = [], []
        for row, images in unanswered.items():
            # Sending a model and images to a worker of this machine takes longer than computing the answers here, and
            # so does sending a model to another machine for few images.
            local = len(images) <= FEW or runtime.computes_here()
            parts = -(-len(images) // FEW) if local else max(-(-len(images) // _IMAGES_AT_A_TIME), self._slots)
            places = np.array_split(np.arange(len(images)), parts) if len(images) else []
            (here if local else there).extend((row, part, images[part]) for part in places)
        predict = _build_predict_here(self.model, whole=whole) if here else None

        def ask(row_and_images):
            row, images = row_and_images
            return predict(row, chosen(self._tests.x, images))

        with ThreadPoolExecutor(self._slots) as pool:
            for wave in self._waves(here):
                # Models are read in this thread, because some lie in files.
                answers = pool.map(ask, [(models[row], images) for row, _, images in wave])
                yield from ((row, places, found) for (row, places, _), found in zip(wave, answers, strict=True))
        for wave in self._waves(there):
            for item, answers in self._answer(models, [(row, images) for row, _, images in wave], whole):
                row, places, _ = wave[item]
                yield row, places, answers

    def _waves(self, pieces: list) -> Iterator[list]:
        """Yields the pieces that are answered at the same time."""
        yield from (pieces[start : start + self._slots] for start in range(0, len(pieces), self._slots))

    def _answer(self, models, wave, whole: bool):
        # There are always as many items as slots, because the runtime keeps an executor for each number of clients.
        nothing = (0, np.zeros(0, np.int64))
        full = wave + [nothing] * (self._slots - len(wave))
        items = [
            collections.OrderedDict(item=np.int32(number), model=models[row], x=chosen(self._tests.x, images))
            for number, (row, images) in enumerate(full)
        ]
        answering = build_answering(self.model, whole=whole)
        answered = ((int(out["item"]), np.asarray(out["answers"])) for out in answering(items))
        return [(item, answers) for item, answers in answered if item < len(wave)]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """`int [N]`, how many labels of each client's test examples count; a sequence has several labels."""
        return np.array([np.count_nonzero(self._counted[index]) for index in self._tests.indices])

    def cluster_accuracy(self, models: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Accuracy of each client's assigned model, or mixture of models, on its own test images.

        Args:
          models: `float32 [K, P]`, or `ModelRows`, which are read one by one.
          keys: As `Method.models_for` returns them: each client's row of `models`, `int [N]`, or weights `float32 [N,
            K]`.

        Returns:
          `float64 [N]`; NaN for a client without test images, or without a label that counts.
        """
        own = zip(self._tests.indices, self._own_predictions(models, keys), strict=True)
        found = np.array([np.sum((label == self._tests.y[images]) & self._counted[images]) for images, label in own])
        return np.divide(found, self.counts, out=np.full(len(found), np.nan), where=self.counts > 0)

    def _wanted(self, used: Assigned) -> dict[int, np.ndarray]:
        """The test images of the clients of each row."""
        tests, members = self._tests.indices, collections.defaultdict(list)
        for client, images in enumerate(tests):
            for row in used.of(client)[0].tolist():
                members[row].append(images)
        return {row: _union(members[row]) for row in sorted(members)}

    def _own_answers(self, models: np.ndarray, keys: np.ndarray, whole: bool) -> Iterator[np.ndarray]:
        """Yields what each client's model, or mixture, answers on its test images: predictions, or outputs if `whole`.

        Each model answers each distinct image once; the answers of a mixture are made from these.
        """
        used = assigned(keys)
        wanted = self._wanted(used)
        answers = self.answers(models, wanted, whole or used.weights is not None)
        for client, images in enumerate(self._tests.indices):
            rows, weights = used.of(client)
            own = [answers[row][np.searchsorted(wanted[row], images)] for row in rows.tolist()]
            if used.weights is None:
                yield own[0]
            else:
                outputs, predictions = _build_mixing(self.model)(np.stack(own), weights)
                yield outputs if whole else predictions

    def _own_predictions(self, models: np.ndarray, keys: np.ndarray) -> Iterator[np.ndarray]:
        """Yields which labels each client's model, or mixture, predicts for its test images."""
        for answers in self._own_answers(models, keys, self._whole):
            yield _build_meaning(self.model)(answers)[0] if self._whole else answers

    def cluster_answers(self, models: np.ndarray, keys: np.ndarray) -> list[Answers]:
        """Returns what each client's assigned model, or mixture, answers on its own test images; arguments as in
        `cluster_accuracy`."""
        outputs = zip(self._tests.indices, self._own_answers(models, keys, whole=True), strict=True)
        return [answers_of(self.model, self._tests.y[own], answers) for own, answers in outputs]

    def cluster_metrics(self, models: np.ndarray, keys: np.ndarray, clusters: np.ndarray) -> dict[str, dict]:
        """Returns the further metrics of the assigned models.

        Args:
          models: As in `cluster_accuracy`.
          keys: As there.
          clusters: `int [N]`, the cluster of each client.

        Returns:
          By the name of each metric: `cluster float64 [N]`, its value on each client's test examples; `clusters`, by
          cluster its value on the test examples of the cluster's clients together; and `global`, None. NaN where it is
          undefined.
        """
        if not self._whole:
            return {}
        own = self.cluster_answers(models, keys)
        together = {
            int(each): Answers.joined([own[client] for client in np.flatnonzero(clusters == each)])
            for each in np.unique(clusters)
        }
        return {
            metric.name: {
                "cluster": np.array([compute(metric, each) for each in own]),
                "clusters": {cluster: compute(metric, each) for cluster, each in together.items()},
                "global": None,
            }
            for metric in self.model.metrics_of_outputs
        }

    def confusion(self, models: np.ndarray, keys: np.ndarray, clusters: np.ndarray) -> dict[int, np.ndarray]:
        """Counts which labels are answered with which; arguments as in `cluster_metrics`.

        Returns:
          For each of the clusters with most clients that have test examples `int64 [C, C]`: how many of their labels
          (row) were answered with another (column). Empty if labels are no classes, or of too many classes to look at.
        """
        classes = self.model.num_classes
        if classes is None or classes > _MOST_CLASSES:
            return {}
        largest = largest_clusters(clusters[self.counts > 0])
        counts = {cluster: np.zeros([classes, classes], np.int64) for cluster in largest.tolist()}
        own = zip(self._tests.indices, clusters.tolist(), self._own_predictions(models, keys), strict=True)
        for images, cluster, predictions in own:
            if cluster in counts:
                which = self._counted[images] & (predictions >= 0)
                pairs = classes * self._tests.y[images][which] + predictions[which]
                counts[cluster] += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
        return counts

    def global_metrics(self, model: np.ndarray) -> dict[str, float | None]:
        """Returns the further metrics of one model `float32 [P]` on the union of all test images; None for an undefined
        one."""
        if not self._whole:
            return {}
        everything = _union(self._tests.indices)
        outputs = self.answers(model[np.newaxis], {0: everything})[0]
        answers = answers_of(self.model, self._tests.y[everything], outputs)
        found = {metric.name: compute(metric, answers) for metric in self.model.metrics_of_outputs}
        return {name: value if np.isfinite(value) else None for name, value in found.items()}

    def global_accuracy(self, model: np.ndarray) -> float | None:
        """Accuracy of one model `float32 [P]` on the union of all test images; None if there are none."""
        everything = _union(self._tests.indices)
        counted = np.count_nonzero(self._counted[everything])
        return float(self.correct(model[np.newaxis], {0: everything})[0].sum() / counted) if counted else None


def own_metrics(
    model: FlatModel, population: Population, client_ids: np.ndarray, outputs: Sequence[bytes]
) -> np.ndarray:
    """Returns the further metrics `float64 [m, M]` of clients' own models on their test examples.

    Args:
      model: The architecture, which names the metrics.
      population: Holds the clients' test examples.
      client_ids: `[m]`.
      outputs: The outputs of each client's model for these, a serialized tensor `float32 [n, ...]`.
    """
    found = np.full([len(client_ids), len(model.metrics_of_outputs)], np.nan)
    for row, client, serialized in zip(found, client_ids, outputs, strict=True):
        given = tf.io.parse_tensor(serialized, tf.float32).numpy()
        if len(given):
            answers = answers_of(model, population.test(client).y, given)
            row[:] = [compute(each, answers) for each in model.metrics_of_outputs]
    return found


def check_metrics(model: FlatModel, population: Population):
    """Tries the further metrics of a model on the test examples of one client, before any round is computed.

    Raises:
      UserError: If a user's own function fails, returns no number, or has the name of another column of rounds.csv.
    """
    for each in model.metrics_of_outputs:
        taken = [row.column for row in rows_of(each.name) if row.column in OF_ROUNDS]
        if each.name not in METRICS and taken:
            raise UserError(f"a metric is called {each.name}, and its column {taken[0]} is another's; rename it")
    tested = next((client for client in population.client_ids if len(population.test(client))), None)
    if model.metrics_of_outputs and tested is not None:
        nowhere = np.zeros(1, int)
        Evaluator(model, population.restricted([tested])).cluster_metrics(model.initial[np.newaxis], nowhere, nowhere)


def _digest(model: np.ndarray, images: np.ndarray) -> bytes:
    """Returns a digest that tells a model and its images from all others.

    A cryptographic hash of a model takes longer than its answers to a hundred images. Two sums of its 32-bit words,
    each times a random 64-bit number (Carter and Wegman 1979), are as fast as reading memory. If two models differ in a
    word, by 2^t times an odd number with t < 32, then 2^t of the 2^64 possible factors of this word make a sum the
    same; both sums are the same with a probability of 2^-66 at most. The factors are drawn anew in each process, so no
    model depends on them. A thousand evaluations of 10,000 models compare fewer than 2^37 pairs: the probability that
    one is taken for another is below 2^-29.
    """
    found = hashlib.blake2b(np.ascontiguousarray(images), digest_size=16)
    words, factors = np.ascontiguousarray(model).view(np.uint32), _digest_factors()
    for start in range(0, len(words), _DIGESTED):
        part = words[start : start + _DIGESTED].astype(np.uint64)
        found.update(np.stack([part @ each[: len(part)] for each in factors]))
    return found.digest()


@functools.cache
def _digest_factors() -> np.ndarray:
    """Random numbers `uint64 [2, _DIGESTED]`."""
    return np.random.default_rng().integers(2**64, size=[2, _DIGESTED], dtype=np.uint64)


def _union(indices):
    # Clients that share a test set share its index array, so each distinct array is looked at once.
    distinct = list({id(each): each for each in indices}.values())
    return np.unique(np.concatenate(distinct)) if distinct else np.zeros(0, np.int64)
