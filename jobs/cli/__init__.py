"""Parses the command line, and runs a job under signals and a supervisor.

Knows every command and computes nothing. The entry point is ``mlx_bulk.jobs.cli.main:main``.
Public: main.
"""
