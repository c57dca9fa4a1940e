"""Turns text into token ids, and back. Knows no model and no files of a run.

Public: tokenizer, stop_strings, assistant_spans, token_offsets, tokenizer_compat.
"""
