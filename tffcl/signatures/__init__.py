"""What a client tells about its data: small tensors of fixed shape, computed at the client."""
