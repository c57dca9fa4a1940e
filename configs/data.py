"""The settings of the input: where rows are, how files of them are read, and what of them is kept. Knows no files."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .fields import FREE, Columns, Count, CountOrNull, Delimiter, Flag, Inputs, NameOrNull, Section, contradiction


class DataConfig(Section):
    """The input rows: where they are, and what of them is kept in the records."""

    path: Annotated[Inputs, FREE] = Field(
        description="File, glob, folder, or a list; '-' is stdin, hf:owner/name a hub dataset, demo:questions.jsonl a shipped file."
    )
    format: Literal["auto", "jsonl", "json", "parquet", "arrow", "csv", "text", "openai"] = Field(
        default="auto",
        description="File format; auto goes by the name, json is one array, openai a Batch file. The ends .gz, .zst and .bz2 are read too.",
    )
    delimiter: Annotated[Delimiter, FREE] = Field(
        default=None, description="What stands between the cells of a CSV: one character, or tab; null is found out from its first lines."
    )
    split: NameOrNull = Field(
        default=None, description="Split to read, by README.md, folders or file names; null is all, and train of a hub dataset."
    )
    config: NameOrNull = Field(default=None, description="Configuration of a hub dataset, or of a folder whose README.md names several.")
    revision: Annotated[NameOrNull, FREE] = Field(default=None, description="Branch, tag or commit of a hub dataset.")
    key: NameOrNull = Field(
        default=None, description="Column with your own id for a row; null is the row's position. Duplicates stop the job."
    )
    keep: Columns = Field(default="all", description="Input columns copied into the record's input struct: all, none, or a list of names.")
    limit: Annotated[CountOrNull, FREE] = Field(default=None, description="Read only so many rows; raising it later extends the run.")

    fetch: Annotated[Flag, FREE] = Field(default=False, description="Pictures that rows name by http(s) are fetched; false refuses them.")
    max_image_pixels: Annotated[Count, FREE] = Field(
        default=89_478_485, description="Most pixels of a picture, width times height; a row with a larger one is refused."
    )
    unknown_fields: Annotated[Literal["refuse", "ignore"], FREE] = Field(
        default="refuse", description="Of a Batch file (format openai): a request with a field that nobody knows is refused, or answered."
    )
    other_models: Annotated[Literal["answer", "refuse"], FREE] = Field(
        default="answer", description="Of a Batch file (format openai): a request that names another model is answered, or refused."
    )

    @property
    def reads_hub(self) -> bool:
        """True where a hub dataset is among the paths."""
        return any(path.startswith("hf:") for path in ([self.path] if isinstance(self.path, str) else self.path))

    @property
    def file_format(self) -> str:
        """The format of the files: a Batch file is one of JSON lines."""
        return "jsonl" if self.format == "openai" else self.format

    @property
    def key_column(self) -> str | None:
        """The column with a row's key, None where its position is the key."""
        return "custom_id" if self.format == "openai" else self.key

    @model_validator(mode="after")
    def _lines_of_a_batch_file(self) -> Self:
        if self.format == "openai" and self.key is not None:
            raise contradiction("key", "expected null, since a line of a Batch file (format: openai) has custom_id as its key; remove it")
        if self.format == "openai" and self.reads_hub:
            raise contradiction("format", "found openai; expected another, since data.path names a hub dataset, which is no Batch file")
        for name in ("unknown_fields", "other_models"):
            if self.format != "openai" and getattr(self, name) != type(self).model_fields[name].default:
                raise contradiction(name, "expected nothing, since it is of Batch files (format: openai); remove it")
        return self

    @model_validator(mode="after")
    def _revision_has_a_hub_dataset(self) -> Self:
        if self.revision is not None and not self.reads_hub:
            raise contradiction("revision", "expected null, since data.path is no hub dataset (hf:owner/name); remove it")
        return self
