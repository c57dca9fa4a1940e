"""An evaluation of lm-evaluation-harness as a run directory: its requests are the rows, its answers the records.

Knows no prompts and no metrics: those are lm-eval's. Imports lm-eval where it is needed alone.
Public: none.
"""
