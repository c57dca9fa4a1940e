"""Processes and settings of the runs over workers that the programs ``cluster_*.py`` start."""
