"""Tables, figures and the HTML report, made from the files of a run.

Nothing here imports TensorFlow: a report can be made again from the files alone, on any machine.
"""
