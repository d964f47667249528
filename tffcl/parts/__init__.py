"""The parts from which users build a method, a signature or an aggregation of their own.

A round is composed of client work, an aggregation factory for each upload, and a server step; signatures are collected
and compared outside of rounds. tffcl/docs/own_parts.md says how they fit together.

from tffcl import parts
composed = parts.compose(work, {"update": parts.keyed_factory(aggregation)}, parts.keyed_server(model.size))
"""

from tffcl.public_names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
