"""One run over several workers: rows go out in leases, journal frames come back, and the driver alone writes.

Knows no job kinds, no command line, and not how messages travel.

Public: held_leases, messages, interface, fleet_work.
"""
