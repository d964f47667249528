"""Readers of one data set each: `load_<name>(<options>) -> Dataset`, with `data_dir` where files are downloaded."""
