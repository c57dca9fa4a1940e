"""The policy that samples: offered by a trainer, kept, swapped, named in each record.

Public: policy_audit, recorded_policies.
"""
