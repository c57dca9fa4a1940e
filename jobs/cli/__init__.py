"""Parses the command line and runs its command.

Knows every command and computes nothing. The entry point is ``mlx_bulk.jobs.cli.main:main``.
Public: main.
"""
