"""Turns a task file into settings, and into the model, data and method that the settings name."""
