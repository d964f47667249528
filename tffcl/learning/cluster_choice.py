"""Which of the K models is a client's: the choice that training makes, by itself, for evaluation and for inference."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work import model_choice
from tffcl.client_work.client_work import stack
from tffcl.learning.client_data import as_examples, check_element_spec
from tffcl.learning.model_weights import to_vector, to_weights, weights_type
from tffcl.models.flat import FlatModel
from tffcl.validation import Count, check_value


def build_choose(model: FlatModel, num_clusters: int, *, element_spec=None) -> tff.Computation:
    """Builds the choice of a client among the models of `build_clustered_fed_avg`: the one of least loss on its data.

    Let clients choose on training or validation data: a model that is chosen on the examples it is then tested on looks better
    than it is.

    ```
    choose = tffcl.learning.build_choose(model, num_clusters=3)
    weights = process.get_model_weights(state)
    chosen = choose(weights, dataset)  # of one client
    chosen["model_weights"].assign_weights_to(keras_model)
    ```

    In a `tff.federated_computation`, `tff.federated_map(choose, (tff.federated_broadcast(weights), client_data))` gives every
    client its model.

    Args:
      model: What was trained.
      num_clusters: K.
      element_spec: Of the clients' data sets, see `build_clustered_fed_avg`.

    Returns:
      `(<W, D*> -> <cluster=int32,losses=float32[K],model_weights=<trainable,non_trainable>>)`: W as `get_model_weights` of the
      process returns it, the number of the model from 0, the mean loss of each model on the data (with K = 1 no model is tried:
      0), and the weights of the chosen one.

    Raises:
      UserError: If `element_spec` is not of examples for the model, or K is below 1.
    """
    num_clusters = check_value("num_clusters", num_clusters, Count)
    examples_type = tff.SequenceType(tff.types.tensorflow_to_type(check_element_spec(model, element_spec)))
    choose_row = model_choice.build_choose(model)

    @tff.tensorflow.computation(weights_type(model, num_clusters), examples_type)
    def choose(weights, data):
        models = tf.stack([to_vector(each) for each in weights])
        tried = stack(as_examples(model, data))
        row, losses = choose_row(models, tried["x"], tried["y"])
        losses = tf.ensure_shape(losses, [num_clusters])
        return collections.OrderedDict(cluster=row, losses=losses, model_weights=to_weights(model, models[row]))

    return choose
