"""The command line: words and options, signals, the supervised second process. Entry point mlx_bulk.jobs.cli.main:main. evaluate stays out of harness/: it says so where lm-eval is missing.

Public: main.
"""
