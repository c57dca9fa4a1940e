"""Reads the requests of a Batch file: which fields of a body count, which are ignored or refused, and what the rest asks for.

Public: answer_format, embedding_request, endpoints, refusal, request, tools.
"""
