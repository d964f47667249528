"""Tables, figures and the HTML report, made from the files of a run.

Nothing here imports TensorFlow: the files are enough to make a report again, on any machine.
"""
