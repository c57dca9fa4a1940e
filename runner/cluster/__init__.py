"""One run over several workers: rows go out in leases, journal frames come back, and the driver alone writes.

Knows no job kinds and no command line. Only the files dask_… know the library that carries the messages.

Public: held_leases, messages, interface, fleet_work, dask_fleet, dask_link, tls_keys.
"""
