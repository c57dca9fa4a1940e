"""Lists what is wrong in mlx-vlm 0.7.10 with pictures that are cut into tiles, with scripts that show it (see ``vision_faults``)."""

from .vision_faults import VisionFault

TILED = """\
CONFIGS["llava_next"] = dict(CONFIGS["llava"], image_grid_pinpoints=[[56, 112]], vocab_size=300)
model = build("llava_next")
tokens = 16 + 4 * (8 + 1)  # of the whole; of two tiles beside each other, whose four rows end with a newline
ids = mx.array([[5, 6, *[IMAGE] * tokens, 7]])
pixels = mx.random.normal((1, 3, 3, 56, 56))
made = model.get_input_embeddings(ids, pixels, image_sizes=mx.array([[56, 112]])).inputs_embeds
assert made.shape[1] == ids.shape[1]
"""
ROUNDED = """\
tiles = importlib.import_module("mlx_vlm.models.llava_onevision.llava_onevision")
for height, width in ((98, 196), (147, 392)):
    kept = tiles.unpad_image(mx.zeros((1, 8, 8)), (height, width)).shape[1]
    assert kept == 8 - 2 * ((8 - height * 8 // width) // 2)  # in whole numbers
"""
TILE_FAULTS = (
    VisionFault(
        "llava_next tiles",
        "llava_next",
        "a picture's tiles are put in the place of one token each, and newlines behind them all: rows get another length",
        "tiles are put together as transformers does (`packed_tiles`)",
        TILED,
    ),
    VisionFault(
        "llava_onevision padding",
        "llava_onevision",
        "padding is cut by a product that floating point rounds below a whole number: some sizes keep a row of it less or more",
        "the product is rounded first, as in transformers (`packed_tiles`)",
        ROUNDED,
    ),
)
