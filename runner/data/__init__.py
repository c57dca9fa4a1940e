"""Reads the input: from data.path to rows with keys and column types. Knows no prompts and no runs.

Public: column_paths, input_folder, reader, request_census, scan_result, spooled_stdin, type_inference.
"""
