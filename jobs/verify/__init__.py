"""``mlx-bulk verify``: formats the audit of a run; ``--rescore`` and ``--replay`` compute its logprobs again.

Public: verify.
"""
