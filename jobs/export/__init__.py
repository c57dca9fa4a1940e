"""mlx-bulk export: records as Parquet, JSONL, CSV, OpenAI lines, trainers' columns, a hub dataset.

Public: export.
"""
