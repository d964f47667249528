"""Images for models that take more than the 8x8 pixels of scikit-learn's digits."""

import numpy as np


def resized(images, shape):
    """Enlarges `images uint8 [n, 8, 8, 1]` by whole pixels, centred on black, and repeats the channel."""
    height, width, channels = shape
    factor = min(height, width) // 8
    large = np.kron(images, np.ones((1, factor, factor, channels), np.uint8))
    rows, columns = height - 8 * factor, width - 8 * factor
    borders = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
    return np.pad(large, borders).astype(np.uint8)


def noise(count, shape, seed=0):
    """Random images `uint8 [count, *shape]`."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)
