"""Token ids drawn from logits [B, V], each row with parameters of its own. ``draw.py`` states the order.

Public: draw, parameters, grammar_mask, logits_processors, dry, xtc, temperature_logprobs, logit_memory.
"""
