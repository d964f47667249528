"""The methods, one file each, composed of signatures, client work, aggregators and clustering."""
