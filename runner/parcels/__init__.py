"""Files on their way from a run's driver to its workers, a part at a time, so that neither end holds much of them.

Public: file_desk, file_messages, parcels.
"""
