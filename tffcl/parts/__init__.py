"""What a method, a signature or an aggregation of one's own is built of, from one place.

A round is composed of client work, an aggregation factory for each upload, and a server step; signatures are collected
and compared by themselves. tffcl/docs/own_parts.md says how they fit together.

from tffcl import parts
composed = parts.compose(work, {"update": parts.keyed_factory(aggregation)}, parts.keyed_server(model.size))
"""

from tffcl.public_names import lazily

# Of each module: what an extension needs of it.
_SHOWN = {
    "aggregators.clustered_mean": ("ClusteredMeanFactory", "aggregated_beside", "keyed_factory"),
    "aggregators.collect": ("collect",),
    "aggregators.contract": ("FactoryTraits",),
    "aggregators.per_cluster": ("PerClusterFactory",),
    "aggregators.relatedness_mean": ("RelatednessMeanFactory",),
    "client_work.client_work": ("ClientWork", "stack"),
    "client_work.local_training": ("LocalTraining",),
    "client_work.optimizers": ("ScheduledOptimizer",),
    "client_work.training": ("build_update_work",),
    "clients.client_examples": ("ClientExamples",),
    "clients.cohort": ("Cohort",),
    "clients.population": ("check_newcomers", "extended", "joined_order"),
    "clients.simulation_context": ("simulating",),
    "clustering.groupings": ("Grouping",),
    "clustering.hierarchical": ("Dendrogram", "build_dendrogram", "cut"),
    "clustering.proximity": ("principal_angles",),
    "clustering.vector_distances": ("vector_distances",),
    "registry": ("aggregation",),
    "rounds.client_queries": ("ask_all", "build_asking", "build_signing"),
    "rounds.composer": ("Round", "Server", "compose"),
    "rounds.privacy_releases": ("Release", "of_all"),
    "rounds.server": ("keyed_server",),
    "rounds.simulation": ("run_round",),
    "rounds.traffic": ("RoundMetrics", "Traffic"),
    "signatures.signature": ("Signature", "build_signature"),
    "signatures.subspace": ("left_singular_vectors",),
    "validation": ("Parameters",),
}

_PLACES = {name: f"tffcl.{module}" for module, names in _SHOWN.items() for name in names}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
