"""Puts pictures into a network: features that a tower makes of them stand in the place of tokens' embeddings.

Knows no prompts, and not how pixels are made of a file. Public: features, image_embedding, text_networks, towers, picture_reader.
"""
