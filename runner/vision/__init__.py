"""Puts pictures into a network: a tower's features stand in the place of tokens' embeddings, or are a row's vector.

Knows no prompts, and not how pixels are made of a file. Public: features, image_embedding, image_encoder, text_networks, towers,
picture_reader, two_towers.
"""
