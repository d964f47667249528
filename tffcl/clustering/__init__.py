"""Server-side clustering of clients: angles between signatures, hierarchical clusters, newcomers."""
