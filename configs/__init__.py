"""Defines a job: its settings, their defaults and bounds, and the errors that say how to fix them.

Knows no models, no files of rows and no run directories.
"""
