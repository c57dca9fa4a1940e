"""Pictures in rows: found, read, checked, and made ready for a vision model's tower. Knows no model, and no mlx.

Public: content_parts, kept_pictures, named_files, pictures, placeholders, row_pictures, sources,
tower_processor.
"""
