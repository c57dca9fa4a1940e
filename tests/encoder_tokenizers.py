"""Small tokenizers of encoders, made without a download: WordPiece as BERT's, byte-level BPE as RoBERTa's and ModernBERT's."""

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

WORDS = "the a of to and in is you how many what apples cats dogs has have had buys each day two three price cost total more less good bad"


def word_pieces(roberta: bool = False) -> Backend:
    """A WordPiece tokenizer of lower-case words, as BERT's: unknown words fall into letters.

    roberta: MPNet's, with RoBERTa's special tokens and no types.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    signs = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*special, *signs, *(f"##{sign}" for sign in signs if sign.isalnum()), *WORDS.split()]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    backend = Backend(models.WordPiece(vocabulary, unk_token="<unk>" if roberta else "[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    if roberta:
        return _finished(backend, special, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return _finished(backend, special, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")


def byte_pairs(special: tuple[str, ...], single: str, pair: str) -> Backend:
    """A byte-level BPE tokenizer, as RoBERTa's and ModernBERT's. ``special`` tokens have the first ids."""
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "Ġth", "Ġthe", "Ġa", "an", "in"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("Ġ", "a"), ("a", "n"), ("i", "n")]
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _finished(backend, list(special), single, pair)


def _finished(backend: Backend, special: list[str], single: str, pair: str) -> Backend:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    named = [(token, backend.token_to_id(token)) for token in special]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=named)
    return backend
