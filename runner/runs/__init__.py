"""One run directory as a whole: whose it is, what it says of itself, whether it is sound. No mlx.

Public: run_dir, run_files, history, status, audit, failures, summary, throughput, drift.
"""
