"""The formats of the input: from a source's bytes to rows that are not parsed yet. Knows no keys and no runs.

``source.FILE_FORMATS`` lists them, and ``row_entries.entries`` picks the reader: ``line_formats`` (jsonl, text), ``json_array``,
``csv_format``, ``table_formats`` (Parquet, Arrow, the hub).

Public: source.
"""
