"""Examples -> token sequences: the one template path of training, sampling, scoring and evaluation.

Prompt and completion are tokenised apart, so no token spans the boundary, and what counts as completion is known by
position, never by token id: a tokenizer whose pad token is its end token trains its end token all the same.

`write.py` makes the texts; here they become token ids, which `truncation.py` holds to the limits of length.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import date as Day
from typing import TYPE_CHECKING, Any, Literal, get_args

from humanline._checks import one_of
from humanline.train.data.chat_template import reads_date
from humanline.train.data.dialogue import first_difference
from humanline.train.data.messages import NOTHING, Answer, Given, Messages
from humanline.train.data.sequences import TokenSequence, joined
from humanline.train.data.text_ids import TextIds
from humanline.train.data.truncation import LengthLimits, TooLong
from humanline.train.data.write import Template, Writer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SpecialTokens = Literal["error", "drop"]

CHECKED_RENDERS = 8  # how many renders are decoded again and compared; a lossy tokenizer shows at once


class Renderer:
    """Turn prompts and completions into token ids by one template.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The policy's tokenizer; it needs an end-of-sequence token.
    template : "chat" or "plain"
        "chat" is the tokenizer's chat template; "plain" the bare text of a one-message prompt, after the tokenizer's
        begin token where it has one, and the bare completion, followed by its end token.
    max_length, too_long, max_prompt_length
        As in `LengthLimits`.
    special_tokens : "error" or "drop"
        What `tokenize` does with examples whose text holds a special token.
    date : datetime.date, optional
        What a chat template that writes the day is told it is.

    Raises
    ------
    ValueError
        If an argument is outside its domain, the tokenizer has no end token, or the template is "chat" and the
        tokenizer has no chat template, or one that writes the day and there is no `date`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: Template,
        max_length: int,
        too_long: TooLong = "error",
        max_prompt_length: int | None = None,
        special_tokens: SpecialTokens = "error",
        date: Day | None = None,
    ) -> None:
        one_of("template", template, get_args(Template))
        one_of("special_tokens", special_tokens, get_args(SpecialTokens))
        self.limits = LengthLimits(max_length, too_long, max_prompt_length)
        if tokenizer.eos_token is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so no completion could end; set eos_token")
        if template == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "the tokenizer has no chat template; set template: plain, or use a tokenizer with one "
                "(instruction-tuned models have it)"
            )
        self.dated = template == "chat" and reads_date(tokenizer)
        if self.dated and date is None:
            raise ValueError(
                "the chat template writes the day on which it is used (strftime_now), so that the same rows would be "
                f"other tokens tomorrow; set data.date, for example data.date={Day.today().isoformat()}"
            )
        self.tokenizer = tokenizer
        self.date = date
        self.writer = Writer(tokenizer, template, date)
        self.template = template
        self.special_tokens = special_tokens
        added = tokenizer.added_tokens_decoder
        self._begin_id = tokenizer.bos_token_id
        self._swallowing = [token for token in added.values() if token.lstrip or token.rstrip]
        self._text_ids = TextIds(tokenizer)
        # The token of unknown text is none of them: every completion behind it would hold what no token is there for.
        unknown = self._text_ids.unknown
        anchors = [token for number, token in added.items() if token.special and number != unknown and not token.rstrip]
        self.anchor = _anchor(tokenizer, list(map(str, anchors)))
        # A tokenizer that puts a space before the first word of a text would put one at the boundary too; after an
        # anchor token, which is taken off again, the completion is no longer the first word.
        self.skipped = 1 if self.anchor else 0
        self._last_prompt_ids: tuple[str, tuple[int, ...]] | None = None
        self._unchecked = CHECKED_RENDERS

    @property
    def template_hash(self) -> str:
        """Return the SHA-256 of the template and the special tokens, to be kept in checkpoints."""
        chat = self.tokenizer.chat_template if self.template == "chat" else None
        content = {"template": self.template, "chat_template": chat, "special": self.tokenizer.special_tokens_map}
        content |= {"date": str(self.date)} if self.dated else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def render_prompt(self, prompt: Messages, given: Given = NOTHING) -> tuple[int, ...]:
        """Return the token ids that sampling continues from; raise as `encode` and `LengthLimits.fit` do."""
        return self.limits.fit(self.encode_prompt(prompt, given)).ids

    def encode(self, prompt: Messages, completion: Answer, given: Given = NOTHING) -> TokenSequence:
        """Return the token ids of a prompt and its completion at full length; `limits` cuts them.

        Parameters
        ----------
        prompt : tuple of Message
        completion : str, Message or tuple of Message
            The assistant's turn: its text, or the whole message; or turns, of which the assistant's are learned.
        given : Given
            Tools and arguments for the template.

        Raises
        ------
        RenderError
            If the template refuses the content, leaves out text, tools or a key of a message, does not continue its
            own prompt or opens another turn after the answer.
        Unfit
            (A RenderError.) If the content holds a special token, or the completion is blank.
        UnknownText
            (A ValueError.) If the tokenizer has no token for a part of the text.
        ValueError
            If the tokenizer loses text, or two begin tokens come out.
        """
        prompt_text, *texts = self._texts(prompt, completion, given)
        prompt_ids = self._prompt_ids(prompt_text)
        ids, said = joined([self._text_ids.one(self.anchor + text)[self.skipped :] for text in texts])
        self._text_ids.refuse_unknown(ids, "".join(texts))
        if self._unchecked:
            self._check_lossless((prompt_text, *texts), (*prompt_ids, *ids))
            self._unchecked -= 1
        return TokenSequence((*prompt_ids, *ids), len(prompt_ids), said=said)

    def texts(self, prompt: Messages, completion: Answer, given: Given = NOTHING) -> tuple[str, ...]:
        """Return the texts of a prompt and of its completion, which are tokenised apart; raise as `encode` does.

        A completion of several turns has several (`Writer.parts`). The first few are encoded too, to check that the
        tokenizer loses nothing of them.
        """
        if self._unchecked:
            self.encode(prompt, completion, given)
        return self._texts(prompt, completion, given)

    def _texts(self, prompt: Messages, completion: Answer, given: Given) -> tuple[str, ...]:
        if not isinstance(completion, tuple):  # what is wrong with the answer is told of first
            completion = self.writer.answer(completion)
        prompt_text = self.writer.written_prompt(prompt, given)
        return prompt_text, *self.writer.parts(prompt, completion, given, prompt_text, check=self._unchecked > 0)

    def refuse_begin_twice(self, prompt_ids: Sequence[int]) -> None:
        """Raise ValueError if a prompt begins with two begin tokens."""
        begin = self._begin_id
        if begin is not None and list(prompt_ids[:2]) == [begin, begin]:
            raise ValueError(f"the chat template writes the begin token {self.tokenizer.bos_token!r} twice; fix it")

    def encode_prompt(self, prompt: Messages, given: Given = NOTHING) -> TokenSequence:
        """Return the token ids of a prompt alone, at full length."""
        ids = self._prompt_ids(self.writer.written_prompt(prompt, given))
        return TokenSequence(ids, len(ids))

    def _prompt_ids(self, text: str) -> tuple[int, ...]:
        if self._last_prompt_ids is None or self._last_prompt_ids[0] != text:
            ids = tuple(self._text_ids.one(text))
            self._text_ids.refuse_unknown(ids, text)
            self.refuse_begin_twice(ids)
            self._last_prompt_ids = (text, ids)
        return self._last_prompt_ids[1]

    def _check_lossless(self, texts: tuple[str, ...], ids: tuple[int, ...]) -> None:
        text = "".join(map(self._swallow, texts))
        back: Any = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        # Some tokenizers compose characters; that loses no text.
        text, back = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", back)
        if back != text:
            at = first_difference(text, back)
            around = slice(max(0, at - 10), at + 20)
            raise ValueError(
                f"the tokenizer does not give back the text it was given: {text[around]!r} became {back[around]!r}; "
                "load it without added spaces (add_prefix_space=False, legacy=False) or use another tokenizer"
            )

    def _swallow(self, text: str) -> str:
        """Drop the spaces that special tokens declare to take with them."""
        for token in self._swallowing:
            pattern = (r"\s*" if token.lstrip else "") + re.escape(str(token)) + (r"\s*" if token.rstrip else "")
            text = re.sub(pattern, lambda _, token=token: str(token), text)  # type: ignore[misc]
        return text


def _anchor(tokenizer: PreTrainedTokenizerBase, candidates: Sequence[str]) -> str:
    """Return a special token that encodes to itself alone, or nothing."""
    for token in (str(tokenizer.eos_token), *candidates):
        if token in candidates and len(tokenizer.encode(token, add_special_tokens=False)) == 1:
            return token
    return ""
