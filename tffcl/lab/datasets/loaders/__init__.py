"""Readers, each of one data set: `load_<name>(<options>) -> Dataset`, with `data_dir` if files are downloaded."""
