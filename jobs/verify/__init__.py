"""mlx-bulk verify: the audit as text; --rescore and --replay work logprobs out anew.

Public: verify.
"""
