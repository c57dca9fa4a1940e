"""Exports records as Parquet, JSONL, CSV, OpenAI lines, trainers' columns, or a dataset on the hub.

Public: export.
"""
