"""Scores documents, completions, choices and chats: a row becomes passages of token ids, their logprobs a record.

Public: score.
"""
