"""Whole layers of a network, from hidden states to hidden states in one call on a CPU: a decoder's, one or all of them, and an encoder's.

Public: all.
"""
