"""The section data: which rows, how they are read, and how they become tokens."""

from __future__ import annotations

from datetime import date as Day
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from humanline._checks import refuse_twice
from humanline.schedule import PositiveInt
from humanline.train.config.base import Fraction, NonEmpty, Section
from humanline.train.config.objective import Shape


def _day(given: Any) -> Any:
    """Return a day that is written down, YYYY-MM-DD, as one."""
    if isinstance(given, str):
        return Day.fromisoformat(given)
    return given


class DataConfig(Section):
    """Rows, how to read them and how to turn them into tokens."""

    train: NonEmpty
    """A .jsonl, .ndjson, .json or .parquet file, or hub:ORG/NAME."""
    eval: NonEmpty | None = None
    """File of held-out rows."""
    shape: Shape | None = None
    """What a row holds; default: what the objective usually reads. In rounds rows are prompts."""
    columns: dict[str, str] = Field(default={})
    """Our name of a field: the file's name, where it has another; {prompt: question, system: instructions}."""
    format: Literal["hh"] | None = None
    """hh: texts are whole conversations with the turn marks of HH-RLHF as published, and become messages."""
    turns: Literal["last", "all"] = "last"
    """Turns of the assistant that are learned: the last one, beyond which two answers may not differ; or all in which
    they do, and of other answers all. What others say between them is read, not learned."""
    bad_rows: Literal["error", "drop"] = "error"
    """What happens to rows that cannot be read; those that are dropped are counted by reason, and named."""
    bad_rows_limit: Fraction = 0.1
    """Share of the rows above which bad ones are an error all the same."""
    ignore: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Keys of messages, and columns, that are left out; a key that the chat template does not write is an error."""
    template: Literal["chat", "plain"] = "chat"
    """The tokenizer's chat template, or bare text with its end token."""
    date: Annotated[Day | None, BeforeValidator(_day)] = None
    """The day that the chat template writes, YYYY-MM-DD, if it writes the day: the same on whatever day it is read."""
    max_length: PositiveInt = 1024
    """Tokens of prompt and answer together."""
    max_prompt_length: PositiveInt | None = None
    """Tokens of the prompt; default: as many as leave room for an answer."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What happens to longer examples; a prompt is never cut."""
    special_tokens: Literal["error", "drop"] = "error"
    """What happens to examples whose text holds a special token of the tokenizer, which would act as control."""

    later: ClassVar[dict[str, Any]] = {
        **{"format": None, "turns": "last", "bad_rows": "error", "bad_rows_limit": 0.1},
        "date": None,
    }
    """Settings that came later, with the value that says what held before."""

    def as_planned(self) -> dict[str, Any]:
        """Return the section for plans of other versions too: without what came later and says what held before."""
        said = self.model_dump(mode="json")
        return {name: value for name, value in said.items() if name not in self.later or value != self.later[name]}

    @model_validator(mode="after")
    def _columns_once(self) -> DataConfig:
        refuse_twice(self.columns)
        return self
