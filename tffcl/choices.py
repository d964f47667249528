"""What a user chooses among by name, and what each choice is, for parameters that are checked before TensorFlow is loaded. Imports nothing."""

# Trees of merges and where they are cut.
LINKAGES = {
    "single": "distance of the two nearest members",
    "complete": "distance of the two farthest members",
    "average": "mean distance over all pairs of members (UPGMA)",
    "weighted": "mean of the distances of the two parts merged last (WPGMA; PACFL's code calls it average)",
}
# Where the dissimilarities are, or are taken for, Euclidean distances.
WITH_WARD = {**LINKAGES, "ward": "what a merge adds to the sum of squared distances to the means (Ward)"}
GAP = "gap"  # the word for the largest relative gap of a tree where a threshold could stand
SELF = "self"  # the word for the rule of `clustering.self_distance` where a threshold could stand
RULES = {
    SELF: "by how far clients are from themselves: one cluster, unless they differ in groups (see `clustering.self_distance`)",
    GAP: "at the largest relative gap between merges, where there always is one",
}

# How far two clients are apart, by their signatures.
ANGLES = {
    "smallest_angle": "the smallest principal angle between the two subspaces (PACFL Eq. 2)",
    "angle_sum": "the sum of all principal angles between the two subspaces (PACFL Table 1)",
    "trace": "the sum of the angles between corresponding columns (PACFL Eq. 3)",
    "smallest_entry": "the smallest angle between any two columns (PACFL's released code)",
}
SIMILARITIES = {
    "agreement": "inner product of the answers over their norms; with one-hot answers the share of equal ones (FLIS's code)",
    "frobenius": "Frobenius norm of the Hadamard product over the norms (FLIS Alg. 2 line 3, as printed)",
}
DISTANCES = {
    "closest_pair": "distance of the two nearest centres, one of each client (FLT Alg. 2 line 16)",
    "matching": "root of the summed squares of the best one-to-one matching of centres, over their number (FLT's code)",
}
VECTOR_METRICS = {
    "euclidean": "the Euclidean distance of the signatures",
    "cosine": "1 minus the cosine of the signatures",
}
NEIGHBOURHOODS = {
    "knee": "the distance to the nearest neighbour at which the clients' sorted ones first bend upwards (Kneedle, the authors' code)",
    "gap": "where the tree of single linkage has its largest relative gap, as in the other methods that cut a tree",
}

# StoCFL's clusters.
REPRESENTATIONS = {
    "members": "the mean over all members that are known (paper, Eq. 2)",
    "cohort": "the mean over the members of this round's cohort (the authors' code)",
}
MERGE_RULES = {
    "single": "all pairs above the threshold at once, transitively; representations stay as they were (paper, Alg. 1)",
    "centroid": "the most similar pairs first, by the mean of what has merged, until no pair is above the threshold",
}
MODEL_MERGES = {
    "mean": "the mean of the models, weighted by the members that trained them",
    "larger": "the model of the cluster with most members that trained it (the authors' code)",
}
GLOBAL_ORDERS = {
    "parallel": "every client starts from the broadcast global model (Eq. 3)",
    "sequential": "a client starts from what the client before made of it; the models on the way are averaged (the authors' code)",
}

# What clients tell.
PREPROCESSING = {
    "raw": "raw pixels divided by 255, other numbers as they are, uncentred (the authors' code)",
    "normalized": "as the model takes them, normalised by the data set's mean and deviation (the authors' code for MIX-4)",
    "centred": "raw, less the mean of the client's own examples: the vectors are its principal components",
}
ANCHOR_FORMS = {
    "gradient": "the gradient of the mean loss at the anchor (paper)",
    "displacement": "the anchor minus what local SGD makes of it (the authors' code)",
}
CLASSES = "classes"  # as many centres as the client has classes

# What clients do.
OPTIMIZERS = {"sgd": "plain SGD (FLT section III-B2)", "adam": "Adam (FLT's code)"}
CONTROL_VARIATES = {
    "gradient": "Option I: c_i becomes the gradient at the model as it was received",
    "difference": "Option II: c_i becomes the mean of the local gradients",
}
GRADIENTS = {"first_order": 2, "hessian_free": 3}  # how the meta-gradient is taken, and how many batches a step needs
VELOCITIES = ("outer", "shared")
CHOOSE_BY = {
    "train_loss": "clients choose by loss on their training examples",
    "validation_loss": "clients choose by loss on examples that they neither train nor test on (dataset.validation)",
    "test_accuracy": "clients choose by accuracy on their test examples: a leak, there to match published numbers",
}
MIXES = {
    "cohort": "clients that take part get a mix, the others keep their model",
    "everyone": "clients that are related to someone who takes part get a mix too",
    "stored": "everyone gets a mix of all relatives' models, of those who do not take part the model that they have",
}
WEIGHTINGS = ("examples", "uniform")  # how much a client counts in a mean, see `rounds.composer`

# How initial weights are drawn, see `models.layer_weights`.
INITIALIZATIONS = ("torch_default", "glorot", "ifca_reference")
