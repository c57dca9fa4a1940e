"""Turns columns into prompt text and text into token ids, and back. Knows no model and no files of a run.

Public: prompt_templates, tokenizer, stop_strings, assistant_spans, tokenizer_compat.
"""
