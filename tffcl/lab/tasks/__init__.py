"""From a task file to settings, and to the model, data and method that they name."""
