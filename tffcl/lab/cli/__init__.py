"""The command line, a file for a group of commands."""
