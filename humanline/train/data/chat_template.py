"""A tokenizer's chat template: the text it writes, and what it was given but leaves out.

A template is a program of its own and reads what it likes; what it does not read it drops without a word. So what it
wrote is held against what it was given: every text, number and truth value in a message's further keys, and every name
in the arguments of tool calls, is changed, all of them at once, and each change has to show. Where one does not, it is
made alone and the two texts are compared, since a template may also read a value without printing it. Of a tool its
name and description have to show, and of its parameters the names and descriptions: templates skip other words of a
schema, and parameters of parameters, by design.

Departures from `apply_chat_template`: the arguments of tool calls are objects, whether the row has them as objects or
as JSON text (as servers of OpenAI's protocol do too), and text for templates that take nothing else; arguments of the
template are refused where it has no such variable, or where they would replace the tokenizer's own or the library's.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date as Day
from typing import TYPE_CHECKING, Any

from humanline.train.data.compiled_template import CompiledTemplate
from humanline.train.data.json_lines import parse_json
from humanline.train.data.messages import NOTHING, TOOLS, Given, Message, to_json, tool_calls
from humanline.train.data.template_limits import TooMuchError, limited_templates, within_limits

if TYPE_CHECKING:  # transformers takes seconds to import, and only its type is needed
    from transformers import PreTrainedTokenizerBase

Path = tuple[str | int, ...]  # of keys and indices, in `_Inputs.tree`


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What has to show: the value at a path, or the name that it has there."""

    path: Path
    name: bool = False


# What a template reads besides: the conversation, and functions that jinja and transformers give it.
NOW = "strftime_now"
_FUNCTIONS = ("raise_exception", NOW, "range", "dict", "namespace", "cycler", "joiner", "lipsum")
_NOT_VARIABLES = ("messages", *_FUNCTIONS)

# Of a tool call they tie calls to results and to their kind; templates that write none of them lose no text.
_LINKS = ("id", "type", "index")


class RenderError(ValueError):
    """One example that cannot be rendered by this template; `place` says where in its file, if that is known."""

    def __init__(self, message: str, place: str = "") -> None:
        self.place = place
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Unread:
    """Something a template was given that makes no difference to what it writes."""

    what: str
    name: str  # of the message's key, or the column
    place: str


_ONE_DAY = threading.RLock()


def reads_date(tokenizer: Any) -> bool:
    """Return whether a chat template of a tokenizer asks for the day, or the time, at which it is used."""
    templates = tokenizer.chat_template
    return any(NOW in str(one) for one in (templates.values() if isinstance(templates, dict) else [templates]))


@contextlib.contextmanager
def _telling(date: Day | None, source: Any) -> Iterator[None]:
    """Let a template be told this day for a while, by the function that tells it the day on which it is used.

    The library keeps one compiled template of a source, with its functions. Its own function has no setting, and a
    variable of that name would be made a text. One thread at a time: another would put back what this one needs.
    """
    if date is None:
        yield
        return
    from transformers.utils.chat_template_utils import _compile_jinja_template

    with _ONE_DAY:
        with limited_templates():
            functions = _compile_jinja_template(source).environment.globals
        before = functions[NOW]
        functions[NOW] = date.strftime
        try:
            yield
        finally:
            functions[NOW] = before


def _refuse_untold(tokenizer: Any) -> None:
    """Raise ValueError if a tokenizer's template would not be told the day, as by another version of the library."""
    source, day = f"{{{{ {NOW}('%Y') }}}}", Day(1999, 12, 31)
    with _telling(day, source):
        said = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], chat_template=source, tokenize=False)
    if said != "1999":
        raise ValueError(
            f"a chat template that writes the day cannot be told data.date here: told {day} it writes {said!r} for the "
            "year; give a copy of the model's folder whose template has a day written out"
        )


class ChatTemplate:
    """The chat template of a tokenizer.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        With a chat template.
    date : datetime.date, optional
        The day it is for a template that asks; by default the day on which it is used.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, date: Day | None = None) -> None:
        self.tokenizer = tokenizer
        self._compiled: set[bool] = set()  # with tools, and without: a tokenizer may have a template for each
        self._date = date if date is not None and reads_date(tokenizer) else None
        if self._date is not None:
            _refuse_untold(tokenizer)
        self._plain = CompiledTemplate(tokenizer, {} if self._date is None else {NOW: self._date.strftime})

    def write(self, turns: Sequence[Message], given: Given = NOTHING, *, opening: bool = False) -> str:
        """Return the text of a conversation.

        Parameters
        ----------
        turns : sequence of Message
        given : Given
        opening : bool
            Whether the opening of an answer follows (add_generation_prompt).

        Raises
        ------
        RenderError
            If the template refuses it, or has no variable for an argument.
        TooMuchError
            If it takes more time or memory, or writes more, than a template may
            (`humanline.train.data.template_limits`): the fault of the model's folder, not of the example.
        """
        if not (given.tools or given.kwargs or _has_keys(turns)):
            try:
                source = self.tokenizer.chat_template  # or several, of which none is written here
                with _telling(self._date if isinstance(source, str) else None, source):
                    text = self._plain.write(turns, opening)
            except TooMuchError as error:
                raise self._too_much(error, _place(turns, given)) from None
            if text is not None:
                return text
        place = _place(turns, given)
        inputs = _inputs(turns, given)
        self._refuse_arguments(inputs, given)
        try:
            return self._apply(inputs, opening)
        except TooMuchError as error:
            raise self._too_much(error, place) from None
        except Exception as error:  # a template is a program of its own and may raise anything
            roles = ", ".join(turn.role for turn in turns)
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise RenderError(f"the chat template refuses the roles {roles}: {reason}", place) from error

    def unread(
        self, turns: Sequence[Message], given: Given = NOTHING, *, first: int = 0, opening: bool = False
    ) -> list[Unread]:
        """Return the tools and keys of messages that the template does not write, as far as it takes the whole.

        A key of an earlier message counts as written if the template writes it while that message is the last one: many
        leave out the reasoning of earlier answers by design.

        Parameters
        ----------
        turns, given, opening
            As in `write`.
        first : int
            Messages before this one, and tools if it is not 0, are not looked at.
        """
        if not _has_keys(turns[first:]) and (first or not given.tools):
            return []
        try:
            return self._unread(turns, given, first, opening)
        except TooMuchError as error:
            raise self._too_much(error, _place(turns, given)) from None

    def _unread(self, turns: Sequence[Message], given: Given, first: int, opening: bool) -> list[Unread]:
        inputs = _inputs(turns, given)
        parts = list(_parts(turns, inputs, given, first))
        if not parts:
            return []
        text = self._try(inputs, opening)
        leaves = [leaf for part in parts for leaf in part.leaves]
        stem = "zq"
        while stem in (text or ""):
            stem += "q"
        marks = {leaf: f"{stem}{number}z" for number, leaf in enumerate(leaves)}
        marked = self._try(inputs.marked(marks), opening) or ""

        def matters(part: _Part, leaf: _Leaf | None) -> bool:
            if leaf is not None and marks[leaf] in marked:
                return True
            changed = inputs.without(part.at) if leaf is None else inputs.changed(leaf, f"{stem}z")
            if self._try(changed, opening) != text:
                return True
            until = None if part.message is None else part.message + 1
            if until is None or until == len(turns):
                return False
            return self._try(changed.until(until), False) != self._try(inputs.until(until), False)

        found = [
            part
            for part in parts
            if not all(matters(part, leaf) for leaf in part.leaves or (None,))  # nothing to change: take it out
        ]
        wholes = {part.at for part in found}  # whose parts need not be told of
        return [part.found for part in found if not any(part.at[:end] in wholes for end in range(len(part.at)))]

    def _try(self, inputs: _Inputs, opening: bool) -> str | None:
        """Return the text, or nothing where the template raises."""
        try:
            return self._apply(inputs, opening)
        except TooMuchError:
            raise
        except Exception:
            return None

    def _apply(self, inputs: _Inputs, opening: bool) -> str:
        """Return the text, with arguments of tool calls as text where the template raises on objects."""
        try:
            return self._call(inputs.tree, opening)
        except TooMuchError:
            raise
        except Exception:
            tree = copy.deepcopy(inputs.tree)
            calls = [call for call in tool_calls(tree["turns"]) if not isinstance(call["arguments"], str)]
            for call in calls:
                call["arguments"] = to_json(call["arguments"])
            if calls:
                try:
                    return self._call(tree, opening)
                except TooMuchError:
                    raise
                except Exception:  # the first reason is the one to tell
                    pass
            raise

    def _call(self, tree: dict[str, Any], opening: bool) -> str:
        apply: Any = self.tokenizer.apply_chat_template
        more = {TOOLS: tree[TOOLS]} if tree[TOOLS] else {}

        def write() -> str:
            return str(apply(tree["turns"], tokenize=False, add_generation_prompt=opening, **more, **tree["kwargs"]))

        source = None if self._date is None else self.tokenizer.get_chat_template(tools=tree[TOOLS] or None)
        with _telling(self._date, source):
            if bool(tree[TOOLS]) in self._compiled:
                return within_limits(write)
            with limited_templates():
                text = within_limits(write)
        self._compiled.add(bool(tree[TOOLS]))
        return text

    def _too_much(self, error: TooMuchError, place: str) -> TooMuchError:
        where = f"{place}: " if place else ""
        return TooMuchError(
            f"{where}the chat template of {str(self.tokenizer.name_or_path)!r} takes too much: {error}; give a model "
            "with another template, or data.template: plain"
        )

    def _refuse_arguments(self, inputs: _Inputs, given: Given) -> None:
        if not inputs.tree["kwargs"]:
            return
        apply: Any = self.tokenizer.apply_chat_template
        own = {*inspect.signature(apply).parameters, *_NOT_VARIABLES, *self.tokenizer.special_tokens_map}
        own.discard("documents")  # a parameter that is handed on as it is
        reads = _variables(str(self.tokenizer.get_chat_template(tools=inputs.tree[TOOLS] or None))) - own
        for name in inputs.tree["kwargs"]:
            if name not in reads:
                known = f"it reads {', '.join(sorted(reads))}" if reads else "it reads none"
                why = "is not for rows to set" if name in own else f"is no variable of the chat template ({known})"
                raise RenderError(f"chat_template_kwargs: {name!r} {why}", given.place)


def _place(turns: Sequence[Message], given: Given) -> str:
    return next((turn.place for turn in turns if turn.place), given.place)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a template is called with: {"turns": [...], "tools": [...], "kwargs": {...}}, never changed in place."""

    tree: dict[str, Any]

    def marked(self, marks: dict[_Leaf, str]) -> _Inputs:
        """Return the same with a mark behind some of its texts and names, and in place of numbers and truth values."""
        tree = copy.deepcopy(self.tree)
        # Names after values, and inner names before outer ones, so that every path is still there.
        for leaf in sorted(marks, key=lambda leaf: (leaf.name, -len(leaf.path))):
            *way, last = leaf.path
            around = _at(tree, way)
            if leaf.name:
                entries = [(f"{key}{marks[leaf]}" if key == last else key, value) for key, value in around.items()]
                around.clear()
                around.update(entries)
            else:
                around[last] = around[last] + marks[leaf] if isinstance(around[last], str) else marks[leaf]
        return _Inputs(tree)

    def changed(self, leaf: _Leaf, mark: str) -> _Inputs:
        """Return the same with one leaf changed, whatever the template asks of its kind."""
        *way, last = leaf.path
        value = _at(self.tree, leaf.path)
        if leaf.name or isinstance(value, str):
            return self.marked({leaf: mark})
        tree = copy.deepcopy(self.tree)
        _at(tree, way)[last] = type(value)(not value)  # another number, and another answer to whether it is there
        return _Inputs(tree)

    def without(self, path: Path) -> _Inputs:
        """Return the same without one of its values."""
        tree = copy.deepcopy(self.tree)
        *way, last = path
        del _at(tree, way)[last]
        return _Inputs(tree)

    def until(self, count: int) -> _Inputs:
        """Return the same with the first so many messages alone."""
        return _Inputs(self.tree | {"turns": self.tree["turns"][:count]})


@dataclass(frozen=True, slots=True)
class _Part:
    """A value that the template has to read: all of `leaves`, or, without any, that it is there at all."""

    at: Path
    leaves: tuple[_Leaf, ...]
    message: int | None
    found: Unread


def _has_keys(turns: Sequence[Message]) -> bool:
    # Asked of every row; `any` over a generator takes three times as long for one or two turns.
    for turn in turns:  # noqa: SIM110
        if turn.keys:
            return True
    return False


def _inputs(turns: Sequence[Message], given: Given) -> _Inputs:
    dicts = [turn.as_dict() for turn in turns]
    for call in tool_calls(dicts):
        if isinstance(call["arguments"], str):
            try:
                arguments = parse_json(call["arguments"])
            except ValueError:  # what a model wrote may be broken
                continue
            call["arguments"] = arguments if isinstance(arguments, dict) else call["arguments"]
    columns = given.columns()
    return _Inputs({"turns": dicts, TOOLS: columns.get(TOOLS, []), "kwargs": columns.get("chat_template_kwargs", {})})


def _parts(turns: Sequence[Message], inputs: _Inputs, given: Given, first: int) -> Iterator[_Part]:
    for number, turn in enumerate(turns):
        if number < first or not turn.keys:
            continue
        where = f"message {number + 1} ({turn.role})"
        for key, value in inputs.tree["turns"][number].items():
            # Other contents are looked for in the text: this one templates drop when the message calls tools.
            if key == "role" or (key == "content" and not (turn.role == "assistant" and value)):
                continue
            path = ("turns", number, key)
            leaves = tuple(_leaves(value, path))
            yield _Part(path, leaves, number, Unread(f"the key {key!r} of {where}", key, turn.place))

    def found(what: str) -> Unread:
        return Unread(what, TOOLS, given.place)

    for number, tool in enumerate(inputs.tree[TOOLS] if not first else ()):
        function = tool.get("function")
        way: Path = (TOOLS, number) if not isinstance(function, dict) else (TOOLS, number, "function")
        told = _at(inputs.tree, way)
        called = f"tool {number + 1}" + (f" ({told['name']})" if isinstance(told.get("name"), str) else "")
        yield _Part((TOOLS, number), tuple(_texts(told, way, "name", "description")), None, found(called))
        parameters = told.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        for name, one in properties.items() if isinstance(properties, dict) else ():
            at = (*way, "parameters", "properties", name)
            leaves = (_Leaf(at, name=True), *_texts(one, at, "description"))
            yield _Part(at, leaves, None, found(f"the parameter {name!r} of {called}"))


def _texts(value: Any, path: Path, *names: str) -> Iterator[_Leaf]:
    """Give the texts that an object has under some names."""
    for name in names if isinstance(value, dict) else ():
        if value.get(name) and isinstance(value[name], str):
            yield _Leaf((*path, name))


def _leaves(value: Any, path: Path, *, free: bool = False) -> Iterator[_Leaf]:
    """Give every text, number and truth value in a value that is not a link, and the names where they are `free`.

    They are in the arguments of tool calls: elsewhere names are those of a protocol, and templates know them.
    """
    if isinstance(value, str | bool | int | float):
        yield _Leaf(path)
    elif isinstance(value, dict):
        for name, one in value.items():
            if free and one is not None:
                yield _Leaf((*path, name), name=True)
            if free or name not in _LINKS:
                yield from _leaves(one, (*path, name), free=free or name == "arguments")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _leaves(one, (*path, number), free=free)


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    return functools.reduce(lambda value, key: value[key], path, tree)


def holds(text: str, part: str) -> bool:
    """Return whether a text holds another one, spaces apart, which templates trim, or as a string of JSON."""
    if part in text or json.dumps(part, ensure_ascii=False)[1:-1] in text:
        return True
    return "".join(part.split()) in "".join(text.split())


@functools.cache
def _variables(template: str) -> frozenset[str]:
    """Return the names that a template expects to be given: those it reads and does not set, or asks for first."""
    from jinja2 import Environment, TemplateError, meta, nodes

    plain = re.sub(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}", "", template)  # a tag of transformers' own
    try:
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except (TemplateError, RecursionError):  # rendering says what is wrong with it
        return frozenset()
    questions = ("defined", "undefined", "default", "d")
    asking = [one for one in parsed.find_all((nodes.Test, nodes.Filter)) if one.name in questions]
    asked = {one.node.name for one in asking if isinstance(one.node, nodes.Name)}
    # What a template sets in one branch and reads after it counts as undeclared.
    own = {name.name for name in parsed.find_all(nodes.Name) if name.ctx == "store"}
    return frozenset(meta.find_undeclared_variables(parsed) - (own - asked))
