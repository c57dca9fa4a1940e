"""How a row's text becomes what the model reads: the prompt before it and the longest text, as the model's folder says or the config."""

from dataclasses import replace

from ...configs.embed import EmbedSettings
from ...configs.errors import ConfigError
from ...configs.fields import nearest
from ...runner.pipeline.job import Parts
from ...runner.pooling.sentence_folder import SentenceFolder
from .text_inputs import TextInputs, TooLong


def chosen_inputs(settings: EmbedSettings, folder: SentenceFolder, parts: Parts) -> TextInputs:
    """Returns the encoder of texts. Raises ConfigError for a prompt that the model does not have, and a length that it cannot take."""
    inputs = TextInputs(
        parts.tokenizer,
        chosen_prompt(settings, folder),
        folder.include_prompt,
        folder.lower_case,
        _max_length(settings.max_length, folder.max_length, _positions(parts)),
        settings.too_long or ("error" if parts.config.data.format == "openai" else _cut_side(parts)),
        settings.max_length is not None,
    )
    if parts.checkpoint.config.get("model_type") == "siglip":
        inputs = _padded(inputs, parts)
    around = sum(inputs.special_tokens)
    if inputs.max_length is not None and inputs.max_length <= around:
        expected = f"expected at least {around + 1}, since the tokenizer puts {around} special tokens around each text"
        raise ConfigError(f"embed.max_length: found {inputs.max_length}; {expected}")
    return inputs


def _padded(inputs: TextInputs, parts: Parts) -> TextInputs:
    """Returns the encoder of SigLIP's texts: it was trained with all of them as long as its positions, and pads are tokens as any."""
    pad = parts.tokenizer.hf.pad_token_id
    if pad is None:
        raise ConfigError("model.path: the tokenizer names no pad_token, with which SigLIP's texts are filled up; fetch the model anew")
    return replace(inputs, padded_length=_positions(parts) or 0, pad=int(pad))


def chosen_prompt(settings: EmbedSettings, folder: SentenceFolder) -> str:
    """Returns the text before each text: the config's, the model's prompt of that name, or its default one; "" for none."""
    if settings.prompt is not None:
        return settings.prompt
    name = settings.prompt_name
    if name is None:
        return folder.prompts.get(folder.default_prompt or "", "")
    if name in folder.prompts:
        return folder.prompts[name]
    if not folder.prompts:
        found = f"and {folder.folder} names no prompts (config_sentence_transformers.json)"
        raise ConfigError(f"embed.prompt_name: found {name}, {found}; give the text itself in embed.prompt")
    near = nearest(name, folder.prompts)
    names = sorted(folder.prompts, key=lambda known: known != near)
    raise ConfigError(f"embed.prompt_name: found {name}; expected one of the model's: {', '.join(names)}")


def _max_length(wanted: int | None, said: int | None, positions: int | None) -> int | None:
    if wanted is not None and positions is not None and wanted > positions:
        raise ConfigError(f"embed.max_length: found {wanted}; expected at most {positions}, the model's positions")
    known = [length for length in (said if wanted is None else wanted, positions) if length is not None]
    return min(known, default=None)


def _positions(parts: Parts) -> int | None:
    """Returns the longest text that the network takes; None where its config does not say."""
    from ...runner.encoders.registry import encoder_class

    config = parts.checkpoint.config
    encoder = encoder_class(config)
    return parts.context if encoder is None else encoder.max_positions(config)


def _cut_side(parts: Parts) -> TooLong:
    return "truncate_left" if parts.tokenizer.hf.truncation_side == "left" else "truncate_right"
