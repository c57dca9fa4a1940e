"""Treats one run directory as a whole: its identity, its state, and whether it is sound. Loads no mlx.

Public: run_dir, run_files, history, status, audit, failures, summary, throughput, drift, worker_parts,
run_pictures, file_place.
"""
