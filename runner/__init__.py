"""The runner: reads rows, plans batches, runs the model, writes records. Importing it readies the backend."""

from ..kernels import backend

backend.prepare()
