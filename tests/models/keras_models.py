"""The models built a second time, of Keras layers, in the order of the weights."""

import tensorflow as tf

layers = tf.keras.layers


def same_weights(keras, model, vector):
    """Gives a Keras model the weights of a model's vector."""
    keras.set_weights([tensor.numpy() for tensor in model.unravel(tf.constant(vector))])
    return keras


def leaf_cnn(classes):
    return tf.keras.Sequential([
        layers.Conv2D(32, 5, padding="same", activation="relu", input_shape=(28, 28, 1)), layers.MaxPool2D(),
        layers.Conv2D(64, 5, padding="same", activation="relu"), layers.MaxPool2D(), layers.Flatten(),
        layers.Dense(2048, "relu"), layers.Dense(classes),
    ])  # fmt: skip


def stocfl_femnist_cnn(classes):
    return tf.keras.Sequential([
        layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)), layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPool2D(), layers.Dropout(0.25), layers.Flatten(),
        layers.Dense(128, "relu"), layers.Dropout(0.5), layers.Dense(classes),
    ])  # fmt: skip


def stocfl_cifar_cnn(classes, hidden):
    return tf.keras.Sequential([
        layers.Conv2D(6, 5, activation="relu", input_shape=(32, 32, 3)), layers.MaxPool2D(),
        layers.Conv2D(16, 5, activation="relu"), layers.MaxPool2D(), layers.Flatten(),
        *(layers.Dense(units, "relu") for units in hidden), layers.Dense(classes),
    ])  # fmt: skip


def mlp(classes):
    return tf.keras.Sequential([
        layers.Flatten(input_shape=(28, 28, 1)), layers.Dense(200), layers.Dropout(0.5), layers.ReLU(),
        layers.Dense(classes),
    ])  # fmt: skip


def resnet9(classes):
    def block(x, channels):
        x = layers.Conv2D(channels, 3, padding="same")(x)
        return layers.ReLU()(layers.GroupNormalization(32, epsilon=1e-5)(x))

    def residual(x, channels):
        return layers.Add()([block(block(x, channels), channels), x])

    image = tf.keras.Input((32, 32, 3))
    x = layers.MaxPool2D()(block(block(image, 64), 128))
    x = layers.MaxPool2D()(block(residual(x, 128), 256))
    x = layers.MaxPool2D()(block(x, 512))
    x = layers.MaxPool2D(4)(residual(x, 512))
    return tf.keras.Model(image, layers.Dense(classes)(layers.Flatten()(x)))


def conv_autoencoder():
    encoder = tf.keras.Sequential([
        layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(28, 28, 1)), layers.MaxPool2D(),
        layers.Conv2D(4, 3, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Flatten(), layers.Dense(128),
    ])  # fmt: skip
    decoder = tf.keras.Sequential([
        layers.Dense(196, input_shape=(128,)), layers.Reshape((7, 7, 4)),
        layers.Conv2DTranspose(16, 2, 2, activation="relu"), layers.Conv2DTranspose(1, 2, 2, activation="sigmoid"),
    ])  # fmt: skip
    return tf.keras.Sequential([encoder, decoder])


def residual_autoencoder():
    def residual_stack(x):
        for _ in range(2):
            inner = layers.Conv2D(32, 3, padding="same", use_bias=False)(layers.ReLU()(x))
            x = layers.Add()([x, layers.Conv2D(128, 1, use_bias=False)(layers.ReLU()(inner))])
        return layers.ReLU()(x)

    def norm(x, groups):
        return layers.GroupNormalization(groups, epsilon=1e-5)(x)

    image = tf.keras.Input((32, 32, 3))
    x = layers.Rescaling(2.0, -1.0)(image)
    for channels, groups in ((64, 16), (128, 32)):
        # Explicit zeros around the image, as PyTorch pads.
        x = layers.Conv2D(channels, 4, 2, activation="relu")(layers.ZeroPadding2D(1)(x))
        x = norm(x, groups)
    x = norm(layers.Conv2D(128, 3, padding="same")(x), 32)
    x = residual_stack(x)
    x = norm(layers.Conv2D(64, 1, activation="relu")(x), 16)
    x = norm(layers.Conv2D(8, 1, activation="relu")(x), 2)
    encoder = tf.keras.Model(image, layers.Dense(128)(layers.Flatten()(x)))

    code = tf.keras.Input((128,))
    x = layers.Reshape((8, 8, 8))(layers.Dense(512)(code))
    x = layers.Conv2DTranspose(64, 1, activation="relu")(x)
    x = layers.Conv2DTranspose(128, 1, activation="relu")(x)
    x = residual_stack(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    # PyTorch's padding 1 of a transposed convolution cuts one row and column off each side.
    x = layers.Cropping2D(1)(layers.Conv2DTranspose(64, 4, 2)(x))
    x = layers.Cropping2D(1)(layers.Conv2DTranspose(3, 4, 2)(layers.ReLU()(x)))
    decoder = tf.keras.Model(code, layers.Activation("sigmoid")(x))
    return tf.keras.Sequential([encoder, decoder])
