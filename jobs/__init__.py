"""The job kinds and the command line. Importing it readies the backend."""

from ..kernels import backend

backend.prepare()
