"""How messages travel between a driver and its workers: Dask's scheduler and streams, joining and leaving, TLS keys, secrets.

Only the files dask_… know the library that carries the messages.

Public: dask_fleet, dask_link, shared_secret, tls_keys.
"""
