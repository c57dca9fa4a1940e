"""The settings of one reward of a rollout job: a function, or a model that rates. Knows only their names."""

import re
from pathlib import PurePath
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from .fields import (
    FREE,
    FROZEN_IF_SET,
    Expected,
    FailOrShare,
    GigabytesOrNull,
    JsonMapping,
    NameOrNull,
    Section,
    SomeSeconds,
    contradiction,
    nearest,
)
from .schema import ModelConfig, named_model

BUILT_IN_REWARDS = ("exact_match", "last_number", "regex", "json_valid", "length")

_FILE = re.compile(r".+\.py:[^\W\d]\w*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_FIELD = re.compile(r"[^\W\d]\w*")
_OF_FUNCTIONS = {"args": {}, "timeout": 60, "memory": None}  # settings of functions alone, and their defaults


class RewardConfig(Section):
    """One reward: a function, or a model that rates."""

    fn: NameOrNull = Field(
        default=None, description="A function: path.py:function, package.module:function, or the name of a built-in reward."
    )
    model: Annotated[
        ModelConfig | None,
        FROZEN_IF_SET,
        BeforeValidator(named_model, json_schema_input_type=str | ModelConfig | None),
        Expected("a model's path, or a mapping with path, revision, dtype, trust_remote_code; or null"),
    ] = Field(default=None, description="A reward model in place of fn: a path, or settings as under model.")
    weight: Annotated[float, Field(ge=-1e6, le=1e6), Expected("a number from -1000000 to 1000000")] = Field(
        default=1.0, description="Its share in a sample's reward, which is the weighted sum."
    )
    name: NameOrNull = Field(
        default=None, description="Its field in the records' rewards; null is the function's name, or the last part of the model's path."
    )
    args: JsonMapping = Field(default={}, description="Further keyword arguments of the function.")
    timeout: SomeSeconds = Field(default=60, description="Seconds for a group; a function that takes longer gives no reward.")
    memory: Annotated[GigabytesOrNull, FREE] = Field(
        default=None, description="Most GB of memory for its process and all that it starts; a function that takes more gives no reward."
    )
    on_error: Annotated[FailOrShare, FREE] = Field(
        default=None,
        description="Null: where it fails there is no reward, and the run goes on. fail: its first failure ends the run. A number: the run "
        "ends when it fails for more than that share of the groups, counted as at least 20.",
    )

    @property
    def label(self) -> str:
        """The name of the reward's field in the records."""
        if self.name is not None:
            return self.name
        return _field_of(self.model.path) if self.model is not None else str(self.fn).rpartition(":")[2]

    @property
    def built_in(self) -> bool:
        """True when ``fn`` names a reward that ships with the package."""
        return self.fn is not None and ":" not in self.fn

    @model_validator(mode="after")
    def _fn_or_model(self) -> Self:
        if (self.fn is None) == (self.model is None):
            found = "neither" if self.fn is None else "both"
            raise contradiction("", f"found {found} of fn and model; expected one of them: a reward function, or a reward model")
        return self

    @model_validator(mode="after")
    def _names_a_function(self) -> Self:
        fn = self.fn
        if fn is not None and not (_FILE.fullmatch(fn) or _MODULE.fullmatch(fn) or fn in BUILT_IN_REWARDS):
            near = nearest(fn, BUILT_IN_REWARDS)
            fix = f"; did you mean {near}?" if near else ""
            raise contradiction(
                "fn", f"found {fn}; expected path.py:function, package.module:function, or one of {', '.join(BUILT_IN_REWARDS)}{fix}"
            )
        if self.name is not None and not _FIELD.fullmatch(self.name):
            raise contradiction("name", f"found {self.name}; expected letters, digits and underscores, as it is a column of the records")
        return self

    @model_validator(mode="after")
    def _settings_of_a_model(self) -> Self:
        if self.model is None:
            return self
        for key, default in _OF_FUNCTIONS.items():
            if getattr(self, key) != default:
                raise contradiction(key, "expected nothing, since it goes with a reward function and this is a reward model; remove it")
        if self.model.adapter is not None:
            raise contradiction("model.adapter", "expected null, since a reward model is loaded as it is; merge the adapter into it first")
        if self.model.unchecked_images:
            raise contradiction("model.unchecked_images", "expected false, since a reward model reads text alone; remove it")
        return self


def _field_of(path: str) -> str:
    """Returns the last part of a path or a repo id as the name of a field: its other characters become underscores.

    >>> _field_of("Skywork/Skywork-Reward-V2-Qwen3-0.6B"), _field_of("models/7b/"), _field_of("..")
    ('Skywork_Reward_V2_Qwen3_0_6B', '_7b', 'reward_model')
    """
    name = re.sub(r"\W", "_", PurePath(path).name.replace("..", ""))
    return f"_{name}" if name[:1].isdecimal() else name or "reward_model"
