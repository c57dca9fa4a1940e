"""The agent of a worker: it stands between the driver of a run and the engine's process, and outlives both.

The agent loads no model and nothing of mlx, so that it waits in little memory. The engine's process does.
Public: none.
"""
