"""The settings of a classification job: classifiers, rerankers, reward models. Bounds and contradictions as in ``schema.py``."""

from typing import Literal

from pydantic import Field

from .fields import CountOrNull, Section
from .schema import JobConfig


class ClassifySettings(Section):
    """What is classified."""

    max_length: CountOrNull = Field(default=None, description="Most tokens of a text or pair; null is the model's.")


class ClassifyConfig(JobConfig):
    """A classification job."""

    job: Literal["classify"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    classify: ClassifySettings = Field(default=ClassifySettings(), description="What is classified, and how.")
