"""The names that a user can choose from; the parameters' docstrings explain them. This module imports nothing, because
the names are checked before TensorFlow is loaded."""

# The trees of merges, and where they are cut.
LINKAGES = {
    "single": "distance of the two nearest members",
    "complete": "distance of the two farthest members",
    "average": "mean distance over all pairs of members (UPGMA)",
    "weighted": "mean of the distances of the two parts merged last (WPGMA; PACFL's code calls it average)",
}
# For dissimilarities that are Euclidean distances, or are treated as such.
WITH_WARD = {**LINKAGES, "ward": "what a merge adds to the sum of squared distances to the means (Ward)"}
GAP = "gap"  # given instead of a threshold: cut at the tree's largest relative gap
SELF = "self"  # given instead of a threshold: the rule of `clustering.self_distance`
RULES = {
    SELF: "by how far clients are from themselves: one cluster, unless they differ in groups (see "
    "`clustering.self_distance`)",
    GAP: "at the largest relative gap between merges, where there always is one",
}

# The distance between two clients, computed from their signatures.
ANGLES = {
    "smallest_angle": "the smallest principal angle between the two subspaces (PACFL Eq. 2)",
    "angle_sum": "the sum of all principal angles between the two subspaces (PACFL Table 1)",
    "trace": "the sum of the angles between corresponding columns (PACFL Eq. 3)",
    "smallest_entry": "the smallest angle between any two columns (PACFL's released code)",
}
SIMILARITIES = {
    "agreement": "inner product of the answers over their norms; with one-hot answers the share of equal ones (FLIS's "
    "code)",
    "frobenius": "Frobenius norm of the Hadamard product over the norms (FLIS Alg. 2 line 3, as printed)",
}
DISTANCES = {
    "closest_pair": "distance of the two nearest centres, one of each client (FLT Alg. 2 line 16)",
    "matching": "root of the summed squares of the best one-to-one matching of centres, over their number (FLT's code)",
}
TRANSPORT = {"wasserstein": "the 1-Wasserstein distance of clients' points, each of a client's of one weight (EMD-CFL)"}
CENTRE_METRICS = {**DISTANCES, **TRANSPORT}
DECOMPOSED = "decomposed_cosine"
VECTOR_METRICS = {
    "euclidean": "the Euclidean distance of the signatures",
    "cosine": "1 minus the cosine of the signatures",
    DECOMPOSED: "the Euclidean distance of the signatures' cosines with their first `num_clusters` singular directions "
    "(FedGroup)",
}
NEIGHBOURHOODS = {
    "knee": "the distance to the nearest neighbour at which the clients' sorted ones first bend upwards (Kneedle, the "
    "authors' code)",
    "gap": "where the tree of single linkage has its largest relative gap, as in the other methods that cut a tree",
}

# How clients are grouped by their distances.
TREE, DENSITY, SOFT = "hierarchical", "density", "soft"
GROUPINGS = {
    TREE: "a tree of merges by `linkage`, cut at `threshold` or into `num_clusters`",
    "kmeans": "k-means into `num_clusters`; of centres as k-FED clusters them",
    DENSITY: "clients with neighbours within `threshold`, by default where their distances bend upwards (DBSCAN)",
    "gaussian_mixture": "a mixture of `num_clusters` spherical Gaussians",
    "spectral": "the graph of similarities, cut into `num_clusters`",
    SOFT: "a tree as of hierarchical, and each client a mixture of its clusters: softmax of -distance / `temperature`",
}
KNEE = "knee"  # the threshold of `density` where none is set

# StoCFL's clusters.
REPRESENTATIONS = ("members", "cohort")  # whose mean a cluster's representation is
MERGE_RULES = ("single", "centroid")  # which clusters of a round merge
MODEL_MERGES = ("mean", "larger")  # the model of clusters that merge
GLOBAL_ORDERS = ("parallel", "sequential")  # how a round's clients train the global model

# What clients send.
PREPROCESSING = ("raw", "normalized", "centred", "grey")  # the data whose subspaces are computed
ANCHOR_FORMS = ("gradient", "displacement")  # what StoCFL's clients send
CLASSES = "classes"  # as many centres as the client has classes

# What clients do.
OPTIMIZERS = ("sgd", "adam")  # of FLT's encoders
LOCAL_OPTIMIZERS = {  # the optimizers of local training, with their own keys
    "sgd": ("momentum",),
    "adam": ("beta_1", "beta_2", "epsilon"),
    "adamw": ("beta_1", "beta_2", "epsilon"),
    "rmsprop": ("beta_2", "epsilon"),
}
PRECISIONS = ("float32", "bfloat16")  # the number format in which clients compute a step
OPTIMIZER_STATES = ("reset", "kept")  # whether an optimizer's state survives a round
CONTROL_VARIATES = ("gradient", "difference")  # how a client updates its variate: SCAFFOLD's Options I and II
GRADIENTS = {"first_order": 2, "hessian_free": 3}  # how the meta-gradient is taken, and how many batches a step needs
VELOCITIES = ("outer", "shared")  # which steps of meta-training use the momentum
CHOOSE_BY = ("train_loss", "validation_loss", "test_accuracy")  # how clients choose a model
MIXES = ("cohort", "everyone", "stored")  # who gets a new mix in a round, and which models are mixed
WEIGHTINGS = ("examples", "uniform")  # how much a client counts in a mean, see `rounds.composer`

# How initial weights are drawn, see `models.layer_weights`.
INITIALIZATIONS = ("torch_default", "glorot", "ifca_reference")
