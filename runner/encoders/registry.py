"""The encoders by the ``model_type`` of config.json."""

from .bert import BertEncoder, ElectraEncoder, RobertaEncoder
from .distilbert import DistilBertEncoder
from .encoder import Encoder
from .modernbert import ModernBertEncoder
from .mpnet import MPNetEncoder
from .nomic_bert import NomicBertEncoder
from .settings import Config
from .text_towers import ClipTextTower, SiglipTextTower

ENCODERS: dict[str, type[Encoder]] = {
    "bert": BertEncoder,
    "camembert": RobertaEncoder,
    "clip": ClipTextTower,
    "distilbert": DistilBertEncoder,
    "electra": ElectraEncoder,
    "modernbert": ModernBertEncoder,
    "mpnet": MPNetEncoder,
    "nomic_bert": NomicBertEncoder,
    "roberta": RobertaEncoder,
    "siglip": SiglipTextTower,
    "xlm-roberta": RobertaEncoder,
}


def encoder_class(config: Config) -> type[Encoder] | None:
    """Returns the class for a checkpoint's config.json; None where its model type is no encoder of ours."""
    return ENCODERS.get(config.get("model_type", ""))
