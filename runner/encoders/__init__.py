"""Encoders of our own, from token ids to hidden states: BERT and its like, and the text encoders of CLIP and SigLIP.

Knows no tokenizers, no pooling and no files. Public: registry, encoder, text_towers.
"""
