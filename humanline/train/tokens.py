"""Examples -> token sequences: the one template path of training, sampling, scoring and evaluation.

Prompt and completion are tokenised apart, so no token spans the boundary, and what counts as completion is known by
position, never by token id: a tokenizer whose pad token is its end token trains its end token all the same.

A special token written inside a message ("<|end|>" in a user's text) would be read as control, ending a turn that does
not end there. Such examples are refused, with their names, rather than escaped: an escape would have to be undone by
every other program that talks to the model. Role markers that a template writes as ordinary text cannot be told from
content and are not looked for.

Whatever a row holds for the template, its messages' keys and its tools too, is written or the example is refused:
`chat_template.py` finds out what a template leaves out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from humanline._checks import fail, one_of
from humanline.train.chat_template import ChatTemplate, holds
from humanline.train.chat_template import RenderError as RenderError
from humanline.train.data import DataError, Group, Preference, PromptOnly, Unpaired
from humanline.train.messages import NOTHING, Answer, Given, Message, Messages, texts_in

if TYPE_CHECKING:  # transformers takes seconds to import, and only its type is needed
    from transformers import PreTrainedTokenizerBase

Template = Literal["chat", "plain"]
TooLong = Literal["error", "drop", "truncate"]
SpecialTokens = Literal["error", "drop"]
Reason = Literal["too_long", "prompt_too_long", "empty_completion", "identical", "special_token"]
E = TypeVar("E", Preference, Unpaired, PromptOnly, Group)
CHECKED_RENDERS = 8  # how many renders are decoded again and compared; a lossy tokenizer shows at once


class Unfit(RenderError):
    """One example that renders but must not be trained on; `reason` says why."""

    def __init__(self, reason: Reason, message: str, place: str = "") -> None:
        self.reason: Reason = reason
        super().__init__(message, place)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of a prompt followed by its completion."""

    ids: tuple[int, ...]
    prompt_length: int
    truncated: bool = False

    @property
    def completion_length(self) -> int:
        """Count the completion's tokens."""
        return len(self.ids) - self.prompt_length

    @property
    def mask(self) -> tuple[bool, ...]:
        """Mark the completion's tokens, by position."""
        return (False,) * self.prompt_length + (True,) * self.completion_length


class Renderer:
    """Turn prompts and completions into token ids by one template.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The policy's tokenizer; it needs an end-of-sequence token.
    template : "chat" or "plain"
        "chat" is the tokenizer's chat template; "plain" the bare text of a one-message prompt, after the tokenizer's
        begin token where it has one, and the bare completion, followed by its end token.
    max_length : int
        Tokens of prompt and completion together, >= 2.
    too_long : "error", "drop" or "truncate"
        What happens to longer examples. "truncate" cuts the completion's end and adds no end token. A prompt is never
        cut.
    max_prompt_length : int or None
        Tokens of the prompt, 1 <= max_prompt_length < max_length; None = as many as leave room for a completion token.
    special_tokens : "error" or "drop"
        What `tokenize` does with examples whose text holds a special token.

    Raises
    ------
    ValueError
        If an argument is outside its domain, the tokenizer has no end token, or the template is "chat" and the
        tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: Template,
        max_length: int,
        too_long: TooLong = "error",
        max_prompt_length: int | None = None,
        special_tokens: SpecialTokens = "error",
    ) -> None:
        one_of("template", template, get_args(Template))
        one_of("special_tokens", special_tokens, get_args(SpecialTokens))
        one_of("too_long", too_long, get_args(TooLong))
        if not _is_int(max_length) or max_length < 2:
            raise fail("max_length", "be an integer >= 2 (one token of prompt, one of completion)", max_length)
        if max_prompt_length is not None and not (_is_int(max_prompt_length) and 1 <= max_prompt_length < max_length):
            rule = f"be an integer from 1 to max_length - 1 = {max_length - 1}"
            raise fail("max_prompt_length", rule, max_prompt_length)
        if tokenizer.eos_token is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so no completion could end; set eos_token")
        if template == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "the tokenizer has no chat template; set template: plain, or use a tokenizer with one "
                "(instruction-tuned models have it)"
            )
        self.tokenizer = tokenizer
        self.chat = ChatTemplate(tokenizer)
        self.template = template
        self.max_length = max_length
        self.too_long = too_long
        self.max_prompt_length = max_prompt_length
        self.special_tokens = special_tokens
        added = list(tokenizer.added_tokens_decoder.values())
        special = {str(token) for token in added if token.special} | set(map(str, tokenizer.all_special_tokens))
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)))
        self._ends = tuple(special - {tokenizer.bos_token} | {tokenizer.eos_token})
        self._swallowing = [token for token in added if token.lstrip or token.rstrip]
        self._anchor = _anchor(tokenizer, [str(token) for token in added if token.special and not token.rstrip])
        self._numbers: dict[int, int] = {}
        self._last_prompt: tuple[tuple[Messages, Given], str, tuple[int, ...]] | None = None
        self._unchecked = CHECKED_RENDERS

    @property
    def template_hash(self) -> str:
        """Return the SHA-256 of the template and the special tokens, to be kept in checkpoints."""
        chat = self.tokenizer.chat_template if self.template == "chat" else None
        content = {"template": self.template, "chat_template": chat, "special": self.tokenizer.special_tokens_map}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def render(self, prompt: Messages, completion: Answer, given: Given = NOTHING) -> TokenSequence:
        """Return the token ids of a prompt and its completion within the limits.

        Parameters
        ----------
        prompt : tuple of Message
        completion : str or Message
            The assistant's turn: its text, or the whole message.
        given : Given
            Tools and arguments for the template.

        Raises
        ------
        RenderError
            If the template refuses the content, leaves out text, tools or a key of a message, does not continue its
            own prompt or opens another turn after the answer.
        Unfit
            (A RenderError.) If the content holds a special token; the completion is blank; the prompt alone is over
            its limit or leaves no room for a completion token; or the whole is longer than `max_length` and `too_long`
            is not "truncate".
        ValueError
            If the tokenizer loses text, or two begin tokens come out.
        """
        return self.fit(self.encode(prompt, completion, given))

    def render_prompt(self, prompt: Messages, given: Given = NOTHING) -> tuple[int, ...]:
        """Return the token ids that sampling continues from; raise as `render` does."""
        return self.fit(self.encode_prompt(prompt, given)).ids

    def encode(self, prompt: Messages, completion: Answer, given: Given = NOTHING) -> TokenSequence:
        """Return the token ids of a prompt and its completion at full length; raise as `render` does, limits apart."""
        answer = completion if isinstance(completion, Message) else Message("assistant", completion)
        self._refuse_special(answer.content, "the completion", answer.place)
        self._refuse_special_keys(answer, "the completion")
        if not answer.content.strip() and not answer.keys:
            raise Unfit("empty_completion", "the completion is blank")
        prompt_text, prompt_ids = self._prompt(prompt, given)
        completion_text = self._completion_text(prompt, answer, given, prompt_text)
        completion_ids = self._ids(completion_text, anchor=self._anchor)
        if self._unchecked:
            self._check_lossless((prompt_text, completion_text), prompt_ids + completion_ids)
            self._unchecked -= 1
        return TokenSequence(prompt_ids + completion_ids, len(prompt_ids))

    def encode_prompt(self, prompt: Messages, given: Given = NOTHING) -> TokenSequence:
        """Return the token ids of a prompt alone, at full length."""
        _, ids = self._prompt(prompt, given)
        return TokenSequence(ids, len(ids))

    def fit(self, sequence: TokenSequence) -> TokenSequence:
        """Return the sequence within the limits, cut if `too_long` is "truncate"; raise Unfit where it cannot be."""
        limit = min(self.max_length - 1, self.max_prompt_length or self.max_length)
        if sequence.prompt_length > limit:
            length = sequence.prompt_length
            raise Unfit("prompt_too_long", f"the prompt has {length} tokens; expected at most {limit}")
        if len(sequence.ids) <= self.max_length:
            return sequence
        if self.too_long != "truncate":
            length = len(sequence.ids)
            raise Unfit("too_long", f"prompt and completion have {length} tokens; expected at most {self.max_length}")
        return replace(sequence, ids=sequence.ids[: self.max_length], truncated=True)

    def prompt_text(self, prompt: Messages, given: Given = NOTHING) -> str:
        """Return the text that the prompt's token ids stand for."""
        for i, message in enumerate(prompt, start=1):
            name = f"message {i} of the prompt ({message.role})"
            self._refuse_special(message.content, name, message.place)
            self._refuse_special_keys(message, name)
        self._refuse_special_in(given.columns(), "what its row gives the template", given.place)
        if self.template == "chat":
            text = self.chat.write(prompt, given, opening=True)
            for i, message in enumerate(prompt, start=1):
                part = message.content
                if message.role == "assistant":  # may be shortened: some templates leave out earlier reasoning
                    part = part.strip().rpartition("\n")[2]
                if not holds(text, part):
                    what = f"the chat template leaves out message {i} of the prompt ({message.role})"
                    raise RenderError(what, message.place)
            self._refuse_unread(prompt, given)
            return text
        self._refuse_for_plain(*prompt, given=given)
        if len(prompt) != 1 or prompt[0].role != "user":
            roles = ", ".join(message.role for message in prompt) or "none"
            raise RenderError(f"template: plain takes one user message; got {roles}; use template: chat")
        return (self.tokenizer.bos_token or "") + prompt[0].content

    def _refuse_for_plain(self, *messages: Message, given: Given = NOTHING) -> None:
        """Refuse what bare text has no place for."""
        places = {name: message.place for message in messages if message.keys for name in json.loads(message.keys)}
        places |= dict.fromkeys(given.columns(), given.place)
        if places:
            names = ", ".join(places)
            raise RenderError(
                f"template: plain writes no {names}; use template: chat, or leave them out: data.ignore: [{names}]",
                next(iter(places.values())),
            )

    def _refuse_unread(self, turns: Messages, given: Given, *, first: int = 0) -> None:
        """Refuse keys and tools that the template does not write."""
        unread = self.chat.unread(turns, given, first=first, opening=not first)
        if unread:
            more = f" and {len(unread) - 4} more" if len(unread) > 4 else ""
            listed = ", ".join(one.what for one in unread[:4]) + more
            names = ", ".join(dict.fromkeys(one.name for one in unread))
            raise RenderError(
                f"the chat template does not write {listed}; use a template that does, or say that it shall be left "
                f"out: data.ignore: [{names}]",
                unread[0].place,
            )

    def _prompt(self, prompt: Messages, given: Given) -> tuple[str, tuple[int, ...]]:
        # Answers to one prompt come together.
        if self._last_prompt is None or self._last_prompt[0] != (prompt, given):
            text = self.prompt_text(prompt, given)
            ids = self._ids(text)
            bos = self.tokenizer.bos_token_id
            if bos is not None and ids[:2] == (bos, bos):
                raise ValueError(f"the chat template writes the begin token {self.tokenizer.bos_token!r} twice; fix it")
            self._last_prompt = ((prompt, given), text, ids)
        return self._last_prompt[1:]

    def _completion_text(self, prompt: Messages, answer: Message, given: Given, prompt_text: str) -> str:
        """Return what follows the prompt's text, ending in an end token and nothing after it."""
        end = str(self.tokenizer.eos_token)
        if self.template == "plain":
            self._refuse_for_plain(answer)
            return answer.content + end
        rest = self._after(prompt_text, (*prompt, answer), given)
        if not holds(rest, answer.content):
            raise RenderError(f"the chat template does not write the whole answer, but {rest[:40]!r}", answer.place)
        if answer.keys:
            self._refuse_unread((*prompt, answer), given, first=len(prompt))
        if self._unchecked and prompt:
            self._check_end(prompt[-1].content, prompt_text, answer.content, rest)
        ended = rest.rstrip()
        return ended if ended.endswith(self._ends) else rest + end

    def _after(self, prompt_text: str, turns: Messages, given: Given) -> str:
        """Return what the template writes after the prompt's text."""
        full = self.chat.write(turns, given)
        if not full.startswith(prompt_text):
            at = first_difference(full, prompt_text)
            raise RenderError(
                f"the chat template does not continue its own prompt: with the answer it writes {full[at : at + 20]!r} "
                f"where the prompt has {prompt_text[at : at + 20]!r}; fix the template or use template: plain",
                turns[-1].place,
            )
        return full[len(prompt_text) :]

    def _check_end(self, question: str, prompt_text: str, completion: str, rest: str) -> None:
        """Refuse a template that writes after the answer what it writes before it: it opens another turn."""
        end, answer, question = str(self.tokenizer.eos_token), completion.strip(), question.strip()
        before = prompt_text.rpartition(question)[2] if question else ""
        if answer:
            before += rest.rpartition(answer)[0]
            after = rest.rpartition(answer)[2].strip()
            again = after == before.strip()
        else:  # it only calls tools
            after = before.strip()
            again = rest.strip().endswith(after)
        if after and again and not after.endswith(end):
            raise RenderError(
                f"the chat template ends with {after!r}, as if another answer followed; it must write the opening of "
                "an answer only for add_generation_prompt"
            )

    def _refuse_special(self, text: str, name: str, place: str = "") -> None:
        found = self._special.search(text)
        if found:
            what = f"{name} holds the special token {found[0]!r}; expected text without it"
            raise Unfit("special_token", what, place)

    def _refuse_special_keys(self, message: Message, name: str) -> None:
        if message.keys:
            self._refuse_special_in(json.loads(message.keys), name, message.place)

    def _refuse_special_in(self, value: Any, name: str, place: str) -> None:
        for text in texts_in(value):
            self._refuse_special(text, name, place)

    def _ids(self, text: str, anchor: str = "") -> tuple[int, ...]:
        # A tokenizer that puts a space before the first word of a text would put one at the boundary too; after an
        # anchor token, which is taken off again, the completion is no longer the first word.
        ids: Any = self.tokenizer.encode(anchor + text, add_special_tokens=False)
        shared = self._numbers.setdefault  # one object per id keeps a large set at 8 bytes a token
        return tuple(shared(i, i) for i in (ids[1:] if anchor else ids))

    def _check_lossless(self, texts: tuple[str, str], ids: tuple[int, ...]) -> None:
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


def first_difference(a: str, b: str) -> int:
    """Return the first place at which two texts differ; the end of the shorter one where it begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _anchor(tokenizer: PreTrainedTokenizerBase, candidates: Sequence[str]) -> str:
    """Return a special token that encodes to itself alone, or nothing."""
    for token in (str(tokenizer.eos_token), *candidates):
        if token in candidates and len(tokenizer.encode(token, add_special_tokens=False)) == 1:
            return token
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# A whole set


@dataclass(frozen=True, slots=True)
class LengthReport:
    """How a set fits the limits, counted in examples; lengths are tokens of the longest answer with its prompt."""

    total: int
    kept: int
    truncated: int
    dropped_too_long: int
    dropped_prompt_too_long: int
    dropped_empty_completion: int
    dropped_identical: int
    dropped_special_token: int
    longest: int
    limit_99: int  # the smallest max_length at which 99 % fit uncut
    prompt_limit_99: int  # the smallest max_prompt_length at which 99 % of the prompts fit

    def __str__(self) -> str:
        counts = {
            "truncated": self.truncated,
            "dropped: too long": self.dropped_too_long,
            "dropped: prompt too long": self.dropped_prompt_too_long,
            "dropped: empty completion": self.dropped_empty_completion,
            "dropped: answers identical": self.dropped_identical,
            "dropped: special tokens in the text": self.dropped_special_token,
        }
        parts = [f"{self.kept} of {self.total} kept", *(f"{n} {name}" for name, n in counts.items() if n)]
        return f"{', '.join(parts)}; longest {self.longest} tokens; max_length {self.limit_99} would keep 99 % whole"


@dataclass(frozen=True, slots=True)
class Tokenized(Generic[E]):
    """Examples that can be trained on, with their token sequences in the same order.

    A preference has two sequences (chosen, rejected), an unpaired example or a prompt one, a group one per completion.
    """

    examples: tuple[E, ...]
    sequences: tuple[tuple[TokenSequence, ...], ...]
    report: LengthReport

    def __len__(self) -> int:
        return len(self.examples)


def tokenize(examples: Sequence[E], renderer: Renderer) -> Tokenized[E]:
    """Render every example, apply the renderer's length policy and count what it did.

    An example is left out whole when any of its sequences cannot be used: the prompt leaves no room for a completion
    token, a completion is blank, the whole is too long (unless it is cut), all its answers came out the same, or a text
    holds a special token.

    Parameters
    ----------
    examples : sequence of Preference, Unpaired, PromptOnly or Group
    renderer : Renderer

    Raises
    ------
    DataError
        If `examples` is empty, any example cannot be rendered, any would be left out and `too_long` is "error" (for
        special tokens, `special_tokens`), or none is left.
    ValueError
        If the tokenizer loses text, or two begin tokens come out.
    """
    if not examples:
        raise DataError("there are no examples to tokenise")
    kept: list[E] = []
    sequences: list[tuple[TokenSequence, ...]] = []
    problems: list[str] = []
    left_out: list[str] = []
    holding: list[str] = []
    reasons: Counter[str] = Counter()
    lengths: list[int] = []
    prompt_lengths: list[int] = []
    for example in examples:
        try:
            whole = _encode_all(example, renderer)
            room = 1 if isinstance(example, PromptOnly) else 0
            lengths.append(max(len(sequence.ids) for sequence in whole) + room)
            prompt_lengths.append(whole[0].prompt_length)
            fitted = tuple(renderer.fit(sequence) for sequence in whole)
            if len(fitted) > 1 and len({sequence.ids for sequence in fitted}) == 1:
                cut = " once cut" if any(sequence.truncated for sequence in fitted) else ""
                raise Unfit("identical", f"the answers are the same tokens{cut}")
        except Unfit as error:
            reasons[error.reason] += 1
            special = error.reason == "special_token"
            (holding if special else left_out).append(f"{error.place or example.id}: {error}")
        except RenderError as error:
            problems.append(f"{error.place or example.id}: {error}")
        else:
            kept.append(example)
            sequences.append(fitted)
    if problems:
        raise DataError(f"{len(problems)} of {len(examples)} examples cannot be rendered", problems)
    report = LengthReport(
        total=len(examples),
        kept=len(kept),
        truncated=sum(any(sequence.truncated for sequence in group) for group in sequences),
        dropped_too_long=reasons["too_long"],
        dropped_prompt_too_long=reasons["prompt_too_long"],
        dropped_empty_completion=reasons["empty_completion"],
        dropped_identical=reasons["identical"],
        dropped_special_token=reasons["special_token"],
        longest=max(lengths, default=0),
        limit_99=_limit_99(lengths),
        prompt_limit_99=_limit_99(prompt_lengths),
    )
    if holding and (renderer.special_tokens == "error" or not (kept or left_out)):
        advice = "Take the tokens out of the texts, or set data.special_tokens: drop to leave these examples out."
        raise DataError(f"{len(holding)} of {len(examples)} examples hold special tokens", holding, advice)
    if left_out and (renderer.too_long == "error" or not kept):
        what = "no example is left" if not kept else f"{len(left_out)} of {len(examples)} examples cannot be used"
        limits = f"data.max_length: {report.limit_99} would keep 99 % whole"
        if reasons["prompt_too_long"] and renderer.max_prompt_length is not None:
            limits += f", data.max_prompt_length: {report.prompt_limit_99} 99 % of the prompts"
        advice = f"{limits}; or set data.too_long: drop or truncate." if kept else f"{limits}."
        raise DataError(f"{what} with max_length {renderer.max_length}", left_out, advice)
    return Tokenized(tuple(kept), tuple(sequences), report)


def _encode_all(example: Preference | Unpaired | PromptOnly | Group, renderer: Renderer) -> list[TokenSequence]:
    if isinstance(example, PromptOnly):
        return [renderer.encode_prompt(example.prompt, example.given)]
    if isinstance(example, Preference):
        answers: tuple[Answer, ...] = (example.chosen, example.rejected)
    else:
        answers = example.completions if isinstance(example, Group) else (example.completion,)
    return [renderer.encode(example.prompt, answer, example.given) for answer in answers]


def _limit_99(lengths: Sequence[int]) -> int:
    """Return the smallest limit that at least 99 % of the lengths do not exceed."""
    return sorted(lengths)[math.ceil(0.99 * len(lengths)) - 1] if lengths else 0
