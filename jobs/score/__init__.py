"""The kind score: documents, completions, choices, chats.

Public: score.
"""
