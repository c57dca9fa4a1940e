"""One model over several processes: which ranks there are, what they tell each other, and how a model is split among them.

Knows no rows, and not how the processes are started.

Public: joined_group, lockstep, model_split, ranks, stall_watch.
"""
