"""lm-evaluation-harness on our engine. Its `__init__` imports lm (that registers the model); `__main__` keeps `-m mlx_bulk.jobs.harness`.

Public: the package itself, requests.
"""
