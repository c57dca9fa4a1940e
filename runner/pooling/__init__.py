"""What becomes of hidden states: one vector a text. Pooling, dense layers and classifier heads over a network's body.

Public: checkpoint_head, hidden_size, sentence_folder, spec.
"""
