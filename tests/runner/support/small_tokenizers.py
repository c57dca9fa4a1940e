"""Makes tokenizers to test on: the demo's byte-level one, and small ones of other kinds."""

import functools

from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from ...checkpoints import DEMO

IM_START = 1  # special in the demo's tokenizer.json, though it has no name such as eos_token
# The characters that stand for the bytes 0 to 255 in a byte-level vocabulary: visible ones for themselves.
HIDDEN = [*range(33), *range(127, 161), 173]
GPT2_BYTES = [chr(256 + HIDDEN.index(byte)) if byte in HIDDEN else chr(byte) for byte in range(256)]


@functools.cache
def demo() -> Tokenizer:
    return load_tokenizer(DEMO, None, {}, trust_remote_code=False)


@functools.cache
def demo_backend() -> Backend:
    return Backend.from_file(str(DEMO / "tokenizer.json"))


def fast(backend: Backend, **names: str) -> Tokenizer:
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", **names))


@functools.cache
def sentencepiece_like(*, bpe: bool) -> Tokenizer:
    """A tokenizer like Llama 2's and Gemma's: ▁ for a space, bytes for characters without a token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁king", "a", "e", "é", "k", "t", "h", "."]
    if bpe:
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = Backend(models.BPE(vocabulary | {"th": len(tokens)}, [("t", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    else:
        scores = [(token, -10.0 if token.startswith("<") else -2.0) for token in tokens]
        backend = Backend(models.Unigram(scores, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return fast(backend)


def metaspace() -> Tokenizer:
    """A tokenizer like T5's and older conversions: pieces of words, without bytes."""
    pieces = ["▁", "▁the", "▁king", "a", "e", "é", "k", "t", "h", ".", "東", "京"]
    backend = Backend(models.Unigram([("<unk>", -20.0), *((piece, -2.0) for piece in pieces)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return fast(backend)


def trimming() -> Tokenizer:
    """Byte-level, with a post-processor that leaves spaces out of its offsets and puts a BOS before the text, as Llama 3's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: i for i, char in enumerate([*alphabet, "Ġk", "<s>", "</s>"])}
    backend = Backend(models.BPE(vocabulary, [("Ġ", "k")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return fast(backend)
