"""Messages -> the texts of prompts and completions, by one template; what a template would lose is refused.

A special token written inside a message ("<|end|>" in a user's text) would be read as control, ending a turn that does
not end there. Such examples are refused, with their names, rather than escaped: an escape would have to be undone by
every other program that talks to the model. Role markers that a template writes as ordinary text cannot be told from
content and are not looked for.

Whatever a row holds for the template, its messages' keys and its tools too, is written or the example is refused:
`chat_template.py` finds out what a template leaves out.
"""

from __future__ import annotations

import json
import re
from datetime import date as Day
from typing import TYPE_CHECKING, Any, Literal

from humanline.train.data.chat_template import ChatTemplate, RenderError, holds
from humanline.train.data.dialogue import first_difference
from humanline.train.data.messages import NOTHING, Answer, Given, Message, Messages, texts_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Template = Literal["chat", "plain"]
Reason = Literal["too_long", "prompt_too_long", "empty_completion", "identical", "special_token"]


class Unfit(RenderError):
    """One example that renders but must not be trained on; `reason` says why."""

    def __init__(self, reason: Reason, message: str, place: str = "") -> None:
        self.reason: Reason = reason
        super().__init__(message, place)


class Writer:
    """Write prompts and completions as the texts that are tokenised, each apart.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        With an end-of-sequence token, and with a chat template if that is the template.
    template, date
        As in `Renderer`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: Template, date: Day | None = None) -> None:
        self.tokenizer, self.template, self.chat = tokenizer, template, ChatTemplate(tokenizer, date)
        added = list(tokenizer.added_tokens_decoder.values())
        special = {str(token) for token in added if token.special} | set(map(str, tokenizer.all_special_tokens))
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)))
        self._end = str(tokenizer.eos_token)
        self._ends = tuple(special - {tokenizer.bos_token} | {tokenizer.eos_token})
        self._taking = tuple(str(token) for token in added if token.rstrip)  # spaces behind them
        self._last_prompt: tuple[tuple[Messages, Given], str] | None = None

    def prompt_text(self, prompt: Messages, given: Given = NOTHING) -> str:
        """Return the text that the prompt's token ids stand for."""
        for i, message in enumerate(prompt, start=1):
            name = f"message {i} of the prompt ({message.role})"
            self._refuse_special(message.content, name, message.place)
            self._refuse_special_keys(message, name)
        if given.tools or given.kwargs:
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

    def written_prompt(self, prompt: Messages, given: Given = NOTHING) -> str:
        """Return `prompt_text`, which is not written again for the next answer to the same prompt."""
        if self._last_prompt is None or self._last_prompt[0] != (prompt, given):
            self._last_prompt = ((prompt, given), self.prompt_text(prompt, given))
        return self._last_prompt[1]

    def answer(self, completion: str | Message) -> Message:
        """Return a completion as a message; refuse special tokens in it, and one that says nothing."""
        answer = completion if isinstance(completion, Message) else Message("assistant", completion)
        self._refuse_special(answer.content, "the completion", answer.place)
        self._refuse_special_keys(answer, "the completion")
        if not answer.content.strip() and not answer.keys:
            raise Unfit("empty_completion", "the completion is blank")
        return answer

    def completion_text(self, prompt: Messages, answer: Message, given: Given, prompt_text: str, *, check: bool) -> str:
        """Return the text after the prompt's, ending in an end token and nothing after it.

        Parameters
        ----------
        prompt : tuple of Message
        answer : Message
            As `answer` returns it.
        given : Given
        prompt_text : str
        check : bool
            Whether to refuse a template that opens another turn after the answer.

        Raises
        ------
        RenderError
            If the template leaves out part of the answer, or does not continue its own prompt.
        """
        if self.template == "plain":
            self._refuse_for_plain(answer)
            return answer.content + self._end
        rest = self._after(prompt_text, (*prompt, answer), given)
        if not holds(rest, answer.content):
            raise RenderError(f"the chat template does not write the whole answer, but {rest[:40]!r}", answer.place)
        if answer.keys:
            self._refuse_unread((*prompt, answer), given, first=len(prompt))
        if check and prompt:
            self._check_end(prompt[-1].content, prompt_text, answer.content, rest)
        ended = rest.rstrip()
        return ended if ended.endswith(self._ends) else rest + self._end

    def parts(
        self, prompt: Messages, completion: Answer, given: Given, prompt_text: str, *, check: bool
    ) -> tuple[str, ...]:
        """Return the texts of a completion, which are tokenised apart: one, or of several turns one behind the other.

        Of several turns every second text, from the first on, is a turn of the assistant that is learned; between them
        is what others say, with the opening of the next answer.

        Parameters
        ----------
        prompt, given, prompt_text, check
            As in `completion_text`.
        completion : str, Message or tuple of Message

        Raises
        ------
        RenderError
            As `completion_text`; or if the template writes earlier turns in another way once others follow.
        """
        if not isinstance(completion, tuple):
            return (self.completion_text(prompt, self.answer(completion), given, prompt_text, check=check),)
        if self.template == "plain":
            raise RenderError("template: plain takes one answer; use template: chat, or data.turns: last")
        texts: list[str] = []
        so_far, before = prompt_text, prompt
        for turn in completion:
            if turn.role == "assistant":
                if texts:
                    opening = self.prompt_text(before, given)
                    if not opening.startswith(so_far):
                        at = first_difference(opening, so_far)
                        raise RenderError(
                            f"the chat template writes an earlier answer in another way once others follow: "
                            f"{opening[at : at + 20]!r} where it wrote {so_far[at : at + 20]!r}; use data.turns: last",
                            turn.place,
                        )
                    said = opening[len(so_far) :]
                    # In a whole text the answer's end token takes these spaces; tokenised apart they would stay.
                    texts.append(said.lstrip() if so_far.endswith(self._taking) else said)
                    so_far = opening
                texts.append(self.completion_text(before, self.answer(turn), given, so_far, check=check))
                so_far += texts[-1]
            before = (*before, turn)
        return tuple(texts)

    def _after(self, prompt_text: str, turns: Messages, given: Given) -> str:
        """Return the template's text after that of the prompt."""
        full = self.chat.write(turns, given)
        if not full.startswith(prompt_text):
            at = first_difference(full, prompt_text)
            raise RenderError(
                f"the chat template does not continue its own prompt: with the answer it writes {full[at : at + 20]!r} "
                f"where the prompt has {prompt_text[at : at + 20]!r}; fix the template or use template: plain",
                turns[-1].place,
            )
        return full[len(prompt_text) :]

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
