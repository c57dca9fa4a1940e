"""One run over several workers: rows go out in leases, journal frames come back, and the driver alone writes.

Knows no job kinds and no command line. Only dask_fleet.py and dask_link.py know the library that carries the messages.

Public: held_leases, messages, interface.
"""
