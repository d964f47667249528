"""Models as one flat float32 vector, in which they are sent, and their bridge to `tff.learning` FunctionalModels."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.display import Shown
from tffcl.errors import UserError
from tffcl.models import from_keras
from tffcl.models.graph_function import converted
from tffcl.models.keras_function import KerasFunction
from tffcl.models.layer_parts import OwnPart, layer_parts
from tffcl.models.layer_weights import STATISTIC, TRAINED, Weight, initialize
from tffcl.models.metrics import ACCURACY, AnswerMetric, chosen
from tffcl.models.objectives import CLASSES, NUMBERS, LossFacts, Objective

_NEAR = 0.05  # of a tensor's standard deviation: enough for models to diverge, too little to lose what they learned


@dataclasses.dataclass(frozen=True, eq=False)
class FlatWeights:
    """Named tensors that travel as one float32 vector `[P]`.

    Attributes:
      name: The name of the architecture.
      weights: The named tensors in the vector's order.
    """

    name: str
    weights: tuple[Weight, ...]

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(weight.size for weight in self.weights)

    def layer_slices(self) -> dict[str, slice]:
        """Where each layer lies in the vector, by layer name, in order."""
        slices, start = {}, 0
        for weight in self.weights:
            layer = weight.name.split("/")[0]
            first = slices[layer].start if layer in slices else start
            start += weight.size
            slices[layer] = slice(first, start)
        return slices

    def unravel(self, vector) -> list[tf.Tensor]:
        """Splits a vector `[P]` into the weights' tensors."""
        parts = tf.split(vector, [weight.size for weight in self.weights])
        return [tf.reshape(part, weight.shape) for part, weight in zip(parts, self.weights)]

    @staticmethod
    def concat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Joins the weights' tensors into a vector `[P]` in TensorFlow, the inverse of `unravel`."""
        return tf.concat([tf.reshape(each, [-1]) for each in tensors], axis=0)

    @property
    def has_statistics(self) -> bool:
        """Whether some weights are statistics."""
        return any(weight.kind == STATISTIC for weight in self.weights)

    def parted(self, tensors: Sequence) -> tuple[list, list]:
        """Splits a sequence in the order of the weights into the trained ones and the statistics."""
        pairs = list(zip(tensors, self.weights, strict=True))
        trained, statistics = ([each for each, w in pairs if w.kind == kind] for kind in (TRAINED, STATISTIC))
        return trained, statistics

    def together(self, trained: Sequence, statistics: Sequence) -> list:
        """The inverse of `parted`."""
        left = {TRAINED: iter(trained), STATISTIC: iter(statistics)}
        return [next(left[weight.kind]) for weight in self.weights]

    def on_trained(self, changed, otherwise) -> tf.Tensor:
        """Returns `changed [..., P]` with `otherwise [..., P]`, or a number, in the entries of statistics, since no
        gradient, decay, correction or step of a server's optimizer touches statistics."""
        return tf.where(self.is_trained, changed, otherwise) if self.has_statistics else changed

    @functools.cached_property
    def is_trained(self) -> np.ndarray:
        """`bool [P]`, which entries of a vector are trained, and so are not statistics."""
        kinds = [weight.kind == TRAINED for weight in self.weights]
        return np.repeat(kinds, [weight.size for weight in self.weights])

    def of_trained(self, vectors: np.ndarray) -> np.ndarray:
        """Returns the trained entries of `vectors [..., P]`. Statistics have the unit of the data and would dominate
        comparisons of vectors."""
        return vectors[..., self.is_trained] if self.has_statistics else vectors

    def ravel(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        """Joins the weights' tensors into a vector `float32 [P]`.

        Raises:
          UserError: If the number or the shapes of the tensors are not the model's.
        """
        shapes = [tuple(np.shape(tensor)) for tensor in tensors]
        if shapes != [weight.shape for weight in self.weights]:
            raise UserError(f"{self.name} has weights of shapes {[w.shape for w in self.weights]}, not {shapes}")
        return np.concatenate([np.ravel(np.asarray(tensor, np.float32)) for tensor in tensors])


@dataclasses.dataclass(frozen=True, eq=False)
class FlatModel(FlatWeights, Shown):
    """A model whose parameters are one float32 vector `[P]`.

    Use `from_functional` or `from_keras` to make one from a model of your own.

    Attributes:
      functional: The same model as `tff.learning.models.FunctionalModel` over raw examples.
      preprocess: Turns raw examples `[n, ...]` into features `[n, ...]`, once per client instead of once per step.
      logits: Maps `(tensors, features, seed)` to outputs `float32 [n, ...]`, see `Objective.outputs`; `seed int32 [2]`
        decides this step's dropout, None stands for inference.
      example_spec: The `tf.TensorSpec` structure of a single example: raw `x` of any type and shape, or several inputs
        by name, in the order of the names; `y` as `Objective.label`.
      objective: What a label is, the loss, and what outputs mean.
      metrics: The metrics of its predictions on whole test sets; () for accuracy alone.
      initialization: Name in `INITIALIZATIONS` by which the initial weights were drawn; None for a model of another
        origin.
      key: Equal for models of one architecture, whatever their initial weights, so that they share what is traced. None
        for a model that shares with no other.
      keras: The Keras model that it was made from, and what that computes; None for all others. A run does not start
        if the weights of the Keras model have changed since.
      own: The part of the model that clients keep to themselves and that is not in the vector, with its initial
        values; None for no part.
    """

    functional: tff.learning.models.FunctionalModel
    preprocess: Callable
    logits: Callable
    example_spec: collections.OrderedDict
    objective: Objective
    metrics: tuple[AnswerMetric, ...] = ()
    initialization: str | None = None
    key: tuple | None = None
    keras: KerasFunction | None = None
    own: OwnPart | None = None

    @property
    def whole(self) -> "FlatModel":
        """The whole model that clients train and use, with the part that they keep; itself if they keep no part."""
        return self if self.own is None else self.own.whole

    def with_own(self, vectors, state) -> tf.Tensor:
        """Joins the part that a client keeps (in `state`, from `local_sgd.kept_state`) to vectors `[..., P]`; returns
        vectors of `whole`. Where clients keep no part, the vectors are unchanged."""
        return vectors if self.own is None else self.own.parts.join(tf.nest.flatten(state)[0], vectors)

    def facts(self):
        """The model's size, and its inputs and outputs."""
        size = f"{self.size:,}"
        return {
            "name": self.name,
            "parameters": size,
            "examples": self.examples,
            **({"labels": self.objective.name} if self.num_classes is None else {"classes": self.num_classes}),
        }

    def __repr__(self) -> str:
        to = self.objective.name if self.num_classes is None else f"{self.num_classes} classes"
        return f"FlatModel({self.name}: {self.size:,} parameters, {self.examples} to {to})"

    @property
    def examples(self) -> str:
        """Type and shape of one raw example, in words."""
        x = self.example_spec["x"]
        inputs = x if isinstance(x, Mapping) else {"": x}
        shown = {name: f"{leaf.dtype.name}{list(leaf.shape)}" for name, leaf in inputs.items()}
        return ", ".join(f"{name}: {each}" if name else each for name, each in shown.items())

    @property
    def x_spec(self):
        """The `tf.TensorSpec` of a batch of raw examples `[None, ...]`, or of each of several inputs by name."""
        return from_keras.batched(self.example_spec["x"])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one raw example; raises UserError for a model of several inputs."""
        return tuple(one_array(self.example_spec, f"a part that looks at the examples of {self.name}").shape)

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one example's labels: `()`, or `(L,)` for a sequence of L labels."""
        return tuple(self.objective.label.shape)

    @property
    def metrics_of_outputs(self) -> tuple[AnswerMetric, ...]:
        """The metrics that need whole outputs; () if there is only accuracy, which does not need them."""
        return self.metrics if any(each is not ACCURACY for each in self.metrics) else ()

    def with_metrics(self, metrics: Sequence[str | Callable]) -> "FlatModel":
        """Returns the same model with other metrics, names or functions as in `from_keras`; raises UserError if one
        does not suit its labels."""
        found = chosen(metrics, self.objective.label_kind)
        own = self.own and dataclasses.replace(self.own, whole=self.own.whole.with_metrics(metrics))
        changed = dataclasses.replace(self, metrics=found, own=own)
        if self.key is None or not changed.metrics_of_outputs:
            return changed
        return dataclasses.replace(changed, key=(*self.key, ("metrics", ", ".join(each.name for each in found))))

    @property
    def num_classes(self) -> int | None:
        """The number of classes; None if labels are not classes."""
        return self.objective.num_classes

    @property
    def initial(self) -> np.ndarray:
        """The initial parameters as a vector `float32 [P]`."""
        return self.ravel(self.functional.initial_weights[0])

    @property
    def has_trained_weights(self) -> bool:
        """Whether the initial weights come from training, in a model of another origin.

        In a new model, biases and all other tensors of rank 1 hold one value or whole numbers; training changes that.
        A model without such tensors counts as trained, since nothing shows whether it is.
        """
        vectors = [np.asarray(tensor) for tensor in self.functional.initial_weights[0] if np.ndim(tensor) == 1]
        moved = (np.ptp(vector) > 0 and np.any(vector != np.round(vector)) for vector in vectors)
        return self.initialization is None and (not vectors or any(moved))

    def draw(self, seed: int, initialization: str | None = None) -> np.ndarray:
        """Draws other initial parameters, a vector `float32 [P]`, where models must differ at first.

        Args:
          seed: Decides the values.
          initialization: A name in `INITIALIZATIONS`; default as for `initial`. A model of another origin has none: the
            entries of each initial tensor are shuffled, so that they keep their distribution. Trained weights get
            normal noise of 5 % of the tensor's standard deviation instead, and tensors that all hold one value normal
            noise of 0.05. Statistics stay as they are.

        Raises:
          UserError: If an initialization is named for a model of another origin.
        """
        if self.initialization is not None:
            return self.ravel(initialize(self.weights, initialization or self.initialization, seed))
        if initialization is not None:
            raise UserError(
                f"initialization {initialization!r} is for tffcl's own architectures; {self.name} has its own"
            )
        rng = np.random.default_rng(seed)
        tensors = [np.asarray(tensor) for tensor in self.functional.initial_weights[0]]
        trained, statistics = self.parted(tensors)
        if not any(np.ptp(tensor) > 0 for tensor in trained):  # e.g. all zero, which shuffling leaves unchanged
            drawn = [tensor + rng.normal(0, _NEAR, tensor.shape) for tensor in trained]
        elif self.has_trained_weights:
            drawn = [tensor + rng.normal(0, _NEAR * np.std(tensor), tensor.shape) for tensor in trained]
        else:
            drawn = [rng.permutation(np.ravel(tensor)).reshape(tensor.shape) for tensor in trained]
        return self.ravel(self.together(drawn, statistics))

    def training_loss(self, tensors, features, labels, seed, weights=None) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the loss of a training step, and the statistics as its forward pass updates them.

        Args:
          tensors: The weights, as `unravel` gives them.
          features: The features of a batch, as `preprocess` gives them.
          labels: The labels of the batch.
          seed: `int32 [2]`, decides this step's dropout; None stands for a pass as at inference, without dropout.
          weights: `float32 [n]`, the weight of each example's loss in the mean over the batch; None: 1.

        Returns:
          The loss `float32`, differentiable in the trained weights alone, and the new values of the weights that are
          statistics, in order; none for a model without statistics.
        """

        def loss(outputs):
            if weights is None:
                return self.objective.loss(outputs, labels)
            return self.objective.weighted_loss(outputs, labels, weights)

        if self.keras is None:
            return loss(self.logits(tensors, features, seed)), []
        outputs, penalty, statistics = self.keras.forward(tensors, features, seed)
        return loss(outputs) + penalty, statistics

    @property
    def has_constraints(self) -> bool:
        """Whether Keras constrains some of the weights after each step."""
        return self.keras is not None and any(self.keras.constraints)

    def constrained(self, trained: Sequence) -> list:
        """Returns the trained weights as Keras' constraints leave them after a step."""
        if self.keras is None or not self.has_constraints:
            return list(trained)
        return [each if fit is None else fit(each) for each, fit in zip(trained, self.keras.constraints, strict=True)]

    def after_step(self, vector, statistics: Sequence) -> tf.Tensor:
        """Returns a vector `[P]` after a step, with its trained weights constrained and with the new statistics."""
        if not (self.has_statistics or self.has_constraints):
            return vector
        return self.concat(self.together(self.constrained(self.parted(self.unravel(vector))[0]), statistics))

    @classmethod
    def from_functional(
        cls,
        functional: tff.learning.models.FunctionalModel,
        name: str = "functional",
        *,
        weight_names=None,
        probabilities=None,
        objective: str | None = None,
        metrics: Sequence[str | Callable] = (),
    ) -> "FlatModel":
        """Makes a `FlatModel` from a `tff.learning.models.FunctionalModel`, whose trainable weights become the vector.

        Args:
          functional: The model. It takes batches `(x, y)` or `{"x": ..., "y": ...}`; y are whole numbers, for which it
            gives an output for each class of each label, or one for each label; or floats.
          name: The name in titles.
          weight_names: "layer/weight" of each trainable weight, so that layers can be named; default numbers.
          probabilities: Function from outputs to probabilities; default softmax or sigmoid, or none if the outputs are
            probabilities already.
          objective: As in `from_keras`.
          metrics: As in `from_keras`.

        Raises:
          UserError: If the input is not such a batch, or outputs, labels and loss do not fit each other.
        """
        facts = LossFacts(objective=objective, probabilities=probabilities)
        made = cls(**from_keras.from_functional(functional, name, weight_names=weight_names, facts=facts))
        return made.with_metrics(metrics or made.objective.usual_metrics)

    @classmethod
    def from_keras(
        cls,
        keras_model,
        loss,
        input_spec,
        name: str | None = None,
        *,
        objective: str | None = None,
        class_weight: Mapping[int, float] | None = None,
        metrics: Sequence[str | Callable] = (),
        statistics: str = from_keras.GLOBAL,
    ) -> "FlatModel":
        """Makes a `FlatModel` from a Keras model.

        Args:
          keras_model: The model. It must be built, with one output tensor that has an output for each class, for each
            label that is 0 or 1, or for each number. Training starts from its current weights. Frozen layers stay as
            they are and are never sent. Dropout follows from the run's seed, regularizers count in the loss, and
            constraints hold after each step of a client. For a model of a class of your own without `get_config`, give
            a function that builds it.
          loss: A mean over the batch, e.g. `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)`,
            `BinaryCrossentropy()` or `MeanSquaredError()`. Labels that it ignores (`ignore_class`), such as padding, do
            not count in accuracies either.
          input_spec: `(x, y)` or `{"x": ..., "y": ...}` of `tf.TensorSpec` with a leading batch dimension, or
            `Population.example_spec`.
          name: The name in titles; default the name of the Keras model.
          objective: What a label is, if loss and input_spec do not show it: "classes", "binary", "labels" (several,
            each 0 or 1), "numbers", or "reconstruction", where the model's input is the label.
          class_weight: Maps a class to the weight of its labels in the loss, as in `tf.keras.Model.fit`; 1 for classes
            that are not in it.
          metrics: The metrics of its predictions, each computed on whole test sets: "accuracy", "balanced_accuracy",
            "f1" (mean over the classes), "f1_micro", "precision", "recall" (of class 1 of two, else means over the
            classes), "auc" (for more than two classes the mean of each against all others), "log_loss", "perplexity",
            "calibration_error"; for numbers "mae", "mse", "r2". Or functions of your own, `(labels, outputs) -> float`,
            of the labels `[n]` and the probabilities `[n, classes]`, or the numbers; larger is better unless the
            function's name ends in "error", "loss", "deviance" or "distance". Comparisons use the first metric.
            Default: accuracy; for numbers all three.
          statistics: How to treat the statistics that the model updates itself, such as batch normalization's moving
            means and variances. "global": they are averaged like weights. "local": each client keeps its own, which
            are never sent (SiloBN, Andreux et al. 2020, arXiv:2008.07424). "fedbn": as "local", and clients keep the
            scales and shifts too, so all weights of these layers (FedBN, Li et al., ICLR 2021, arXiv:2102.07623).
            "reset": each training starts from the model's current statistics, which are never changed or sent. A client
            that has not trained yet, such as a newcomer, has the model's current statistics.

        Raises:
          UserError: If the model is not built, cannot be built again or called, outputs and labels do not fit each
            other, or the loss takes logits but the outputs are probabilities, or the other way round.
        """
        fields, of_whole = from_keras.from_keras(
            keras_model, loss, input_spec, name, objective=objective, class_weight=class_weight, statistics=statistics
        )
        made = cls(**fields)
        if of_whole is not None:
            whole, shared = cls(**of_whole), {weight.name for weight in made.weights}
            parts = layer_parts(whole, [each.name for each in whole.weights if each.name not in shared])
            made = dataclasses.replace(made, own=OwnPart(whole, parts))
        return made.with_metrics(metrics or made.objective.usual_metrics)


def one_array(example_spec: Mapping, part: str) -> tf.TensorSpec:
    """Returns the spec of an example's features, which are one array.

    Args:
      example_spec: The spec of an example.
      part: What needs one array, for the message.

    Raises:
      UserError: If the features are several inputs.
    """
    x = example_spec["x"]
    if isinstance(x, Mapping):
        raise UserError(f"{part} needs examples that are one array; these are of several inputs ({', '.join(x)})")
    return x


def mean_cross_entropy(logits, labels, sample_weight=None):
    """Mean cross-entropy of `logits [n, classes]` against integer `labels [n]`."""
    del sample_weight
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=logits)
    return tf.reduce_mean(losses)


def cross_entropies(logits, labels):
    """Cross-entropies `float32 [n]` of `logits [n, classes]` against integer `labels [n]`."""
    return -tf.gather(tf.nn.log_softmax(logits), labels, axis=1, batch_dims=1)


def _squared_errors(outputs, labels):
    """Squared errors `float32 [n]` of `outputs [n, 1]` against numbers `labels [n]`."""
    return tf.math.squared_difference(outputs[:, 0], labels)


def _mean_squared_error(outputs, labels, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(_squared_errors(outputs, labels))


def _objective(num_classes: int | None) -> Objective:
    """The objective of a model of `num_classes` classes, or of one number."""
    if num_classes is None:
        label = tf.TensorSpec((), tf.float32)
        return Objective(NUMBERS, label, (1,), _mean_squared_error, _squared_errors)
    classes = int(num_classes)
    label = tf.TensorSpec((), tf.int32)
    how = {"probabilities": tf.nn.softmax, "activation": tf.nn.softmax, "num_classes": classes}
    return Objective(CLASSES, label, (classes,), mean_cross_entropy, cross_entropies, **how)


def build_preprocess(normalization: tuple) -> Callable:
    """Builds the step from raw images `uint8 [n, ...]` to features `float32 [n, ...]`.

    Args:
      normalization: `(mean, std)`, scalars or one per channel, on the scale 0 to 1.
    """
    mean, std = (tf.constant(np.asarray(value, np.float32)).numpy() for value in normalization)

    def preprocess(images):
        # One multiply and one add on [n, ...]: (x / 255 - mean) / std.
        return tf.cast(images, tf.float32) * (1.0 / (255.0 * std)) - mean / std

    return preprocess


def build_flat_model(
    name: str,
    weights: Sequence[Weight],
    logits: Callable,
    *,
    input_shape: Sequence[int],
    num_classes: int | None,
    normalization: tuple | None,
    initialization: str,
    seed: int,
) -> FlatModel:
    """Makes a `FlatModel` from its weights and its forward pass.

    Args:
      name: The name of the architecture.
      weights: Named tensors, in order.
      logits: `(tensors, features, seed)` to logits `[n, num_classes]`; see `FlatModel.logits`.
      input_shape: The shape of one example.
      num_classes: Number of outputs; None: the model has one, a number to predict, and learns by its squared error.
      normalization: For raw uint8 images `(mean, std)`, scalars or one per channel, on the scale 0 to 1. None: examples
        are float32, not images, and stay as they are.
      initialization: A name in `INITIALIZATIONS`.
      seed: The seed of the initial weights.

    Returns:
      The model; its `functional` takes such examples and int32 labels, or float32 labels if they are numbers.
    """
    preprocess = from_keras.as_it_is if normalization is None else build_preprocess(normalization)
    dtype, logits = tf.float32 if normalization is None else tf.uint8, converted(logits)
    input_shape = tuple(int(size) for size in input_shape)

    @tf.function(autograph=False)
    def predict_on_batch(model_weights, x, training):
        seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32) if training else None
        return logits(list(model_weights[0]), preprocess(x), seed)

    objective = _objective(num_classes)
    functional = tff.learning.models.FunctionalModel(
        initial_weights=(tuple(initialize(weights, initialization, seed)), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=objective.loss,
        input_spec=(tf.TensorSpec((None, *input_shape), dtype), tf.TensorSpec((None,), objective.label.dtype)),
    )
    spec = collections.OrderedDict(x=tf.TensorSpec(input_shape, dtype), y=objective.label)
    made = FlatModel(
        name, tuple(weights), functional, preprocess, logits, spec, objective, initialization=initialization
    )
    return made if objective.has_accuracy else made.with_metrics(objective.usual_metrics)
