"""Signatures, by which clients describe their data: small tensors of fixed shape, computed at the client."""
