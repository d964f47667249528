"""Values of TFF as checkpoints hold them."""

import collections
from collections.abc import Mapping


def plain_containers(value):
    """Returns a value of TFF's with mappings in the place of named tuples and attrs objects, as a checkpoint can hold them; TFF
    takes either."""
    names = [each.name for each in getattr(type(value), "__attrs_attrs__", ())] or getattr(value, "_fields", None)
    if names:
        return collections.OrderedDict((name, plain_containers(getattr(value, name))) for name in names)
    if isinstance(value, Mapping):
        return collections.OrderedDict((name, plain_containers(each)) for name, each in value.items())
    return type(value)(map(plain_containers, value)) if isinstance(value, (list, tuple)) else value
