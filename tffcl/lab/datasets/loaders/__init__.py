"""Readers of one data set each: `load_<name>(*, data_dir, <options>) -> Dataset`."""
