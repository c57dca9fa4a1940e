"""Which rows of a run go to which worker, and how many. Knows no messages and no connections; callers pass the time in.

Public: lease_log, leaser, open_lease, row_set, track_record, worker_table.
"""
