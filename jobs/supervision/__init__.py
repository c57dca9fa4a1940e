"""Watches over a process: ends it in order on signals, starts it again when it dies, and finds the row that kills it.

Knows no commands and no jobs.
Public: signals, supervisor, supervisor_link.
"""
