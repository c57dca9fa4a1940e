"""Stores records in a log-structured way: journal (WAL) -> part file -> line in the commit log. Knows rows by number only.

Public: results, commit_log, paths, arrow_builder, writer.
"""
