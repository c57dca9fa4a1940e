"""What a job is: its settings, their defaults and bounds, and the errors that say how to mend them.

Knows nothing of models, files of rows or run directories.
"""
