"""Writes files that survive a power cut: atomic writes, checked lines, locks, hashes, the user's cache. Knows bytes, not runs.

Public: atomic, checked_json, disk_space, folder_lock, checked_lines, file_stamp, user_cache.
"""
