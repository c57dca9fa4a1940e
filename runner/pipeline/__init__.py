"""A run from end to end: job contract, worker threads, progress; on disk (session) and in memory.

Public: job, session, in_memory, stored_model, loading, run_spec, progress_display.
"""
