"""A worker's engine process: leases of rows come in, they run through a model as those of any run, and frames of records go out.

Knows no job kinds, and not how messages travel.

Public: engine_service, rank_service.
"""
