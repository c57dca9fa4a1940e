"""The log-structured store of records: journal (WAL) -> part file -> line in the commit log. Knows rows by number only.

Public: results, commit_log, paths, arrow_builder.
"""
