"""What a client does with its data: local training and local evaluation, as tf.functions over a flat model."""
