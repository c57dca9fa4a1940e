"""Encoders of our own: BERT and its like, from token ids to hidden states. Knows no tokenizers, no pooling and no files.

Public: registry, encoder.
"""
