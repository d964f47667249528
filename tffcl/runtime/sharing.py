"""The argument of a computation, parted among workers by its TFF type."""

import tensorflow_federated as tff


def deal(argument, type_spec, hands: int):
    """Reorders the clients so that contiguous shares get every `hands`-th of them.

    A round's clients come largest first, and TFF parts them in contiguous shares: the first worker would get all the
    large ones. All values at clients are reordered alike.
    """
    if argument is None or hands == 1:
        return argument
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is not tff.CLIENTS or type_spec.all_equal or not isinstance(argument, (list, tuple)):
            return argument
        return [each for hand in range(hands) for each in argument[hand::hands]]
    if isinstance(type_spec, tff.StructType) and isinstance(argument, tff.structure.Struct):
        types = [each for _, each in tff.structure.iter_elements(type_spec)]
        elements = zip(tff.structure.iter_elements(argument), types, strict=True)
        return tff.structure.Struct([(name, deal(value, kind, hands)) for (name, value), kind in elements])
    return argument


def placements(type_spec, placement):
    """Yields the parts of a type that are at a placement."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is placement:
            yield type_spec
    elif isinstance(type_spec, tff.StructType):
        for part in type_spec:
            yield from placements(part, placement)


def without_clients(argument, type_spec):
    """Leaves no clients in an argument; what is at the server stays."""
    if isinstance(type_spec, tff.FederatedType):
        return [] if type_spec.placement is tff.CLIENTS and not type_spec.all_equal else argument
    if isinstance(type_spec, tff.StructType) and any(placements(type_spec, tff.CLIENTS)):
        parts = zip(tff.structure.name_list_with_nones(type_spec), tff.structure.from_container(argument), type_spec)
        return tff.structure.Struct([(name, without_clients(part, kind)) for name, part, kind in parts])
    return argument
