"""A chat template compiled once, for messages that have a role and a content and nothing else, as most have.

`apply_chat_template` looks at its arguments anew for every conversation, which takes as long as the template itself.
What this writes is held against what that writes until it has agreed several times, and where anything is unusual,
the template raises or the tokenizer has ways of its own, nothing is written here at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from humanline.train.data.messages import Message
from humanline.train.data.template_limits import TooMuchError, limited_templates, within_limits

_PROVED = 8  # texts that have to agree


class CompiledTemplate:
    """The chat template of a tokenizer, as long as nothing but messages is given.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    functions : mapping
        In place of those that the library gives a template.
    """

    def __init__(self, tokenizer: Any, functions: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._tokenizer, self._functions = tokenizer, functions
        self._source: Any = None
        self._template: Any = None
        self._globals: dict[str, Any] = {}
        self._around: dict[str, Any] = {}  # what a template sees besides messages, the globals too
        self._unproved = _PROVED

    def write(self, turns: Sequence[Message], opening: bool) -> str | None:
        """Return the text of `apply_chat_template`, or None where it must be called; raise TooMuchError as it does."""
        source = self._tokenizer.chat_template
        if source is not self._source:
            self._compile(source)
        template = self._template
        if template is None:
            return None
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        # As template.render does, but that the names around the messages are not put together anew every time.
        seen = {**self._around, "messages": messages, "add_generation_prompt": opening}
        environment = template.environment
        try:
            context = environment.context_class(environment, seen, template.name, template.blocks, self._globals)
            text = within_limits(lambda: environment.concat(template.root_render_func(context)))
        except TooMuchError:
            raise
        except Exception:  # whoever is asked then says why
            return None
        if self._unproved:
            apply = self._tokenizer.apply_chat_template
            if text != within_limits(lambda: apply(messages, tokenize=False, add_generation_prompt=opening)):
                self._template = None
                return None
            self._unproved -= 1
        return text

    def _compile(self, source: Any) -> None:
        self._source, self._template, self._unproved = source, None, _PROVED
        own = (getattr(type(self._tokenizer), name, None) for name in ("apply_chat_template", "get_chat_template"))
        if not isinstance(source, str) or not all(_of_transformers(one) for one in own):
            return
        special = dict(self._tokenizer.special_tokens_map)
        if not all(type(one) is str for value in special.values() for one in ([value], value)[type(value) is list]):
            return
        try:
            from transformers.utils.chat_template_utils import _compile_jinja_template

            with limited_templates():
                template = _compile_jinja_template(source)
            self._globals = {**template.globals, **self._functions}
            self._around = {**self._globals, "tools": None, "documents": None, **special}
        except Exception:  # not there in this version, or no template: apply_chat_template says what is wrong with it
            return
        self._template = template


def _of_transformers(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).startswith("transformers.")
