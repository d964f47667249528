"""A data scientist has a table of several owners' rows: do they differ, what serves them, what does a new row get?"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer

import tffcl
from tffcl.algorithms import build_fedavg, build_pacfl, build_solo

# Her table: eight clinics, of which half measure in other units.
table = load_breast_cancer(as_frame=True).frame
table.insert(0, "clinic", np.array([f"clinic {each}" for each in "ABCDEFGH"])[np.arange(len(table)) % 8])
other = table.clinic.isin(["clinic B", "clinic D", "clinic F", "clinic H"])
table.loc[other, table.columns[1:16]] *= 3.0
table.to_csv("patients.csv", index=False)

clients = tffcl.Population.from_frame("patients.csv", client="clinic", label="target", test=0.3)
dense = tf.keras.layers.Dense
network = tf.keras.Sequential([dense(16, activation="relu", input_shape=(30,)), dense(1, activation="sigmoid")])
loss = tf.keras.losses.BinaryCrossentropy()
model = tffcl.FlatModel.from_keras(network, loss, clients.example_spec, metrics=("accuracy", "auc"))
print(tffcl.similarity(clients, model=model))

training = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.05)
methods = {build.__name__[6:]: build(model, training) for build in (build_fedavg, build_pacfl, build_solo)}
protocol = {"rounds": 5, "clients_per_round": 8, "evaluate_every": 5}
compared = tffcl.compare(methods, clients, "compared", **protocol)
print(compared.verdict)

best = compared.result("pacfl", seed=0)
rows = table[table.clinic == "clinic A"]
print(best.predict("clinic A", clients.features_of(rows), probabilities=True)[:3])
best.keras_model_of("clinic A").save("clinic_a.keras")
