"""A network for sequences of characters. TensorFlow is imported no earlier than it is built."""

from tffcl.errors import UserError
from tffcl.models.layer_weights import architecture
from tffcl.validation import Count, validated

_UNROLLED = 32  # so long sequences take two thirds of a loop's time, and longer ones take more to trace than that saves


@architecture
@validated
def build_char_lstm(
    input_shape, num_classes, *, embedding: Count = 8, units: Count = 64, layers: Count = 1, normalization=None, seed=0
):
    """Builds an embedding, LSTM layers and a dense layer that gives the classes of each position's next character.

    LEAF's network for Shakespeare (Caldas et al. 2018) has `units=256, layers=2` and answers for the last position
    alone. An orthogonal recurrent kernel, forget biases of 1, else Glorot's initialization, as Keras has them.

    Args:
      input_shape: `(L,)`: an example is a sequence of L whole numbers below `num_classes`.
      num_classes: Number of characters.
      embedding: Width of the embedding.
      units: Of each LSTM layer.
      layers: How many LSTM layers.
      normalization: None: characters are no images.
      seed: Of the initial weights.

    Raises:
      UserError: If examples are images or no sequences, or labels no classes.
    """
    if normalization is not None or len(input_shape) != 1 or num_classes is None:
        raise UserError(
            "char_lstm needs sequences of characters, int32 [n, L], whose labels are the next ones, as in dataset texts"
        )
    import tensorflow as tf

    from tffcl.models.flat import FlatModel

    draw, parts = tf.keras.initializers, tf.keras.layers
    embedded = draw.RandomUniform(-0.05, 0.05, seed=seed)
    stack = [parts.Embedding(num_classes, embedding, input_length=input_shape[0], embeddings_initializer=embedded)]
    for number in range(1, layers + 1):
        drawn = {
            "kernel_initializer": draw.GlorotUniform(seed + 2 * number),
            "recurrent_initializer": draw.Orthogonal(seed=seed + 2 * number + 1),
        }
        unrolled = input_shape[0] <= _UNROLLED
        stack.append(parts.LSTM(units, return_sequences=True, unroll=unrolled, name=f"lstm{number}", **drawn))
    stack.append(parts.Dense(num_classes, kernel_initializer=draw.GlorotUniform(seed + 1), name="output"))
    spec = (tf.TensorSpec([None, *input_shape], tf.int32), tf.TensorSpec([None, *input_shape], tf.int32))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return FlatModel.from_keras(tf.keras.Sequential(stack), loss, spec, "char_lstm")
