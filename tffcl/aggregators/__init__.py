"""TFF aggregation processes keyed by cluster ID, and the collection of client values at the server."""
