"""Runs a job from end to end: in a run directory (session) or in memory. Holds the contract of a job, the I/O threads and progress.

Does not know which kinds of job there are, nor the command line.

Public: job, session, model_work, in_memory, stored_model, loading, run_spec, progress_display, systematic_failure.
"""
