"""What a reward model reads of a completion: prompt and completion together, as TRL's GRPOTrainer gives them to one.

A chat goes through the reward model's own chat template, a text is followed by the completion. Neither gets further special tokens.
"""

from ...runner.core.errors import RowError
from ...runner.core.requests import Request, TokenInput
from ...runner.models.reward_checkpoint import RewardModel
from ...runner.templates.chat_messages import Message


def rated_input(model: RewardModel, request: Request, turn: Message) -> TokenInput | str:
    """Returns the token ids of a prompt and of the assistant's ``turn`` after it, or as "kind: text" why there is no such input."""
    if request.prompt.images:
        return "pictures: reward models read text alone, and the prompt has pictures; rate such rows with a function"
    chat, text = request.work.chat, request.prompt.text + str(turn["content"])
    if chat is not None:
        answer = {**turn, "content": chat.prefill + str(turn["content"])}
        try:
            text = model.tokenizer.messages_text([*chat.messages, answer], **chat.variables)
        except RowError as error:
            return f"template: {error}"
    ids = model.tokenizer.encode_text(text).ids
    if not len(ids):
        return "empty: prompt and completion have no token together; expected a text"
    most = model.most_tokens
    if most is not None and len(ids) > most:
        return f"too_long: prompt and completion have {len(ids):,} tokens, the reward model takes {most:,}"
    return TokenInput(ids)
