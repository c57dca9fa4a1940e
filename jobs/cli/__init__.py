"""The command line: options, signals, the supervised second process.

Knows every command and computes nothing. The entry point is ``mlx_bulk.jobs.cli.main:main``. Public: main.
"""
