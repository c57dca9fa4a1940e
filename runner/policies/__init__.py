"""Changes the policy that samples: finds newer ones of a trainer, keeps and loads them, names them in the records.

Does not know rewards, rows' columns or the command line.

Public: policy_audit, recorded_policies.
"""
