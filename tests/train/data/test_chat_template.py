"""What a row holds for the chat template: written alike wherever the template is used, or refused with its place."""

from __future__ import annotations

import contextlib
import copy
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from humanline.train.data import chat_template
from humanline.train.data.chat_template import ChatTemplate, RenderError
from humanline.train.data.messages import Given, Message
from humanline.train.data.render import Renderer
from humanline.train.data.rows import read_rows, read_set
from humanline.train.data.source import DataError
from humanline.train.data.tokenize import tokenize
from tests.helpers.chat_templates import ASK, CALL, CALLING, CALLS, RESULT, SAID, THINKING, TOOL, TURNS, with_template
from tests.helpers.rows import duplicates_of

SHAPES = {
    "preference": lambda prompt, answer: {"prompt": prompt, "chosen": [answer], "rejected": "No."},
    "unpaired": lambda prompt, answer: {"prompt": prompt, "completion": [answer], "label": True},
    "completion": lambda prompt, answer: {"messages": [*prompt, answer]},
    "prompt": lambda prompt, answer: {"prompt": prompt},
}


@pytest.fixture(scope="module")
def renderers(tokenizer):
    """Offer a renderer of each template, and one without any."""
    named = {"thinking": THINKING, "calls": CALLS, "turns": TURNS}
    made = {name: Renderer(with_template(tokenizer, text), "chat", 4096) for name, text in named.items()}
    return made | {"plain": Renderer(tokenizer, "plain", 4096)}


@pytest.fixture
def rendered(write, renderers):
    """Return the texts, prompt and completion, that a row becomes under a template."""

    def render(template, row, shape="completion", **more):
        renderer = renderers[template]
        tokenized = tokenize(read_rows(write(row), shape, **more), renderer)
        decode = renderer.tokenizer.decode
        return [
            (decode(list(one.ids[: one.prompt_length])), decode(list(one.ids[one.prompt_length :])))
            for one in tokenized.sequences[0]
        ]

    return render


@pytest.fixture
def refused(rendered):
    """Return the one problem that a row is refused for, without the file's name."""

    def refuse(template, row, shape="completion", **more):
        with pytest.raises(DataError) as caught:
            rendered(template, row, shape, **more)
        (problem,) = caught.value.problems
        return problem.removeprefix("rows.jsonl:")

    return refuse


def column_of(row, text, after=""):
    """The column, from 1, of a piece of a row's JSON."""
    line = json.dumps(row)
    return line.index(text, line.index(after)) + 1


# --- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])], ids=["objects", "text"])
def test_tools_and_keys_are_in_the_ids_of_every_shape(rendered, shape, tools):
    """Tools, calls and results stand in the prompt, the reasoning in the part that counts, from whatever row."""
    row = SHAPES[shape]([ASK, CALLING, RESULT], SAID) | {"tools": tools}
    prompt, answer = rendered("thinking", row, shape)[0]
    assert prompt == (
        "<|bos|><|system|>\nTools:\n" + json.dumps(TOOL) + "<|end|>\n<|user|>\nWhat is the weather in Köln?<|end|>\n"
        '<|assistant|>\n<call>get_weather {"city": "Köln", "unit": "celsius", "days": 2}</call><|end|>\n'
        '<|user|>\n<result>{"sky": "grey"}\nand "wet"</result><|end|>\n<|assistant|>\n'
    )
    assert answer == ("" if shape == "prompt" else "<think>The result says so.</think>\nGrey.<|end|>")


def test_a_template_of_other_habits_gets_the_same_row(rendered):
    """Tools by name and description, one call a message, results as a string of JSON: all of it is found written."""
    row = {"messages": [ASK, CALLING, RESULT, {"role": "assistant", "content": "Grey."}], "tools": [TOOL]}
    row["chat_template_kwargs"] = {"date_string": "1 May 2025"}
    ((prompt, answer),) = rendered("calls", row)
    assert "Today is 1 May 2025.\nget_weather: Look at the sky.\n<|end|>" in prompt
    assert '{"name": "get_weather", "parameters": {"city": "Köln", "unit": "celsius", "days": 2}}<|end|>' in prompt
    assert json.dumps(RESULT["content"]) in prompt and answer == "Grey.<|end|>"


@pytest.mark.parametrize("kwargs", [{"think": False}, '{"think": false}'], ids=["object", "text"])
def test_arguments_of_the_template_reach_the_opening_of_an_answer(rendered, kwargs):
    """What a row sets for its template acts on the prompt that sampling and training share."""
    row = {"prompt": "q", "chosen": "a", "rejected": "b", "chat_template_kwargs": kwargs}
    plain = SHAPES["preference"]([ASK], SAID)
    assert rendered("thinking", {"prompt": "q"} | {"chat_template_kwargs": kwargs}, "prompt")[0][0].endswith(
        "<|assistant|>\n<think></think>\n"
    )
    assert "<think>" not in rendered("thinking", plain, "preference")[0][0]
    with pytest.raises(DataError, match="does not continue its own prompt"):  # its answers lack what the opening has
        rendered("thinking", row, "preference")


def test_a_call_of_a_tool_is_an_answer(rendered):
    """An answer may be a call without any text; it counts whole, and ends like others."""
    ((_, answer),) = rendered("thinking", {"messages": [ASK, CALLING], "tools": [TOOL]})
    assert answer == '<call>get_weather {"city": "Köln", "unit": "celsius", "days": 2}</call><|end|>'


def test_answers_may_differ_in_what_they_call_or_think_alone(rendered):
    """Pairs whose last turns have the same text, but not the same calls or reasoning, are pairs."""
    other = copy.deepcopy(CALLING)
    other["tool_calls"][0]["function"]["arguments"]["city"] = "Bonn"
    first, second = rendered("thinking", {"chosen": [ASK, CALLING], "rejected": [ASK, other]}, "preference")
    assert first[0] == second[0] and '"city": "Köln"' in first[1] and '"city": "Bonn"' in second[1]
    thought = SAID | {"reasoning_content": "A guess."}
    first, second = rendered("thinking", {"chosen": [ASK, SAID], "rejected": [ASK, thought]}, "preference")
    assert "says so" in first[1] and "A guess." in second[1] and first[1].endswith("Grey.<|end|>")


def test_arguments_of_calls_are_objects_or_json_text(rendered, tokenizer, write):
    """JSON text is written like the object; a template that takes text alone gets text; broken JSON stays as it is."""
    texts = copy.deepcopy(CALLING)
    texts["tool_calls"][0]["function"]["arguments"] = json.dumps(CALL["function"]["arguments"])
    for template in ("thinking", "calls"):
        rows = [{"messages": [ASK, one], "tools": [TOOL]} for one in (CALLING, texts)]
        assert rendered(template, rows[0]) == rendered(template, rows[1])
    broken = copy.deepcopy(CALLING)
    broken["tool_calls"][0]["function"]["arguments"] = '{"city": '
    assert rendered("thinking", {"messages": [ASK, broken]})[0][1] == '<call>get_weather {"city": </call><|end|>'
    adding = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '!' + c.function.arguments }}"
        + ("{{ c.function.name }}{% endfor %}<|end|>{% endfor %}")
    )
    renderer = Renderer(with_template(tokenizer, adding), "chat", 512)
    (one,) = tokenize(read_rows(write({"messages": [ASK, CALLING]}), "completion"), renderer).sequences[0]
    assert '!{"city": "Köln", "unit": "celsius", "days": 2}get_weather<|end|>' in renderer.tokenizer.decode(one.ids)


def test_earlier_reasoning_may_be_left_out_by_design(rendered):
    """A template that writes reasoning for the last answer alone takes conversations that have it in each."""
    row = {"messages": [ASK, SAID, ASK, SAID | {"content": "Still grey."}]}
    ((prompt, answer),) = rendered("thinking", row)
    assert "says so" not in prompt and "Grey." in prompt and answer.startswith("<think>The result says so.</think>")


@pytest.mark.parametrize("empty", [None, "", [], {}])
def test_what_holds_nothing_is_absent(rendered, empty):
    """Keys and columns that are null or empty are as if they were not there, under every template."""
    row = {"messages": [ASK | {"name": empty}, {"role": "assistant", "content": "a", "tool_calls": empty}]}
    assert rendered("turns", row | {"tools": empty, "chat_template_kwargs": empty}) == [
        ("<|bos|><|user|>\nWhat is the weather in Köln?<|end|>\n<|assistant|>\n", "a<|end|>")
    ]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_that_is_not_written_is_refused_or_ignored_by_name(rendered, refused, shape):
    """The row is named with file, line and column of the message, and the setting that leaves the key out does."""
    row = SHAPES[shape]([ASK, CALLING, RESULT | {"tool_call_id": "call_1", "name": "get_weather"}], SAID)
    told, at = refused("thinking", row, shape), column_of(row, "{", '{"role": "tool"')
    assert told == (
        f"1:{at}: the chat template does not write the key 'tool_call_id' of message 3 "
        "(tool), the key 'name' of message 3 (tool); use a template that does, or say that it shall be left out: "
        "data.ignore: [tool_call_id, name]"
    )
    ignored = rendered("thinking", row, shape, ignore=["tool_call_id", "name"])
    assert ignored == rendered("thinking", SHAPES[shape]([ASK, CALLING, RESULT], SAID), shape)


@pytest.mark.parametrize("key", ["reasoning_content", "tool_calls", "name", "thinking", "anything"])
@pytest.mark.parametrize("side", ["prompt", "answer"])
def test_a_template_of_contents_alone_takes_no_key(refused, key, side):
    """Each key of a prompt's or an answer's message is refused where the template writes contents only."""
    value = [CALL] if key == "tool_calls" else "What is the weather in Köln?"  # a text that the prompt holds anyway
    turns = [ASK, {"role": "assistant", "content": "a"}, ASK, {"role": "assistant", "content": "b"}]
    turns[1 if side == "prompt" else 3] |= {key: value}
    told = refused("turns", {"messages": turns})
    assert f"does not write the key {key!r} of message {2 if side == 'prompt' else 4} (assistant)" in told


def test_values_without_text_have_to_matter_too(refused, rendered, tokenizer, write):
    """A number or a truth value is taken where the template reads it and refused where it does not."""
    row = {"messages": [ASK, {"role": "assistant", "content": "a", "prefix": True}]}
    assert "the key 'prefix' of message 2" in refused("thinking", row)
    reading = THINKING.replace("{{ m.content }}{% endif %}", "{{ '!' if m.prefix }}{{ m.content }}{% endif %}")
    renderer = Renderer(with_template(tokenizer, reading), "chat", 512)
    (one,) = tokenize(read_rows(write(row), "completion"), renderer).sequences[0]
    assert renderer.tokenizer.decode(one.ids[one.prompt_length :]) == "!a<|end|>"


def test_part_of_a_key_is_not_enough(refused, tokenizer, write):
    """A second call that is not written, arguments that are not, and a text beside a call are refused by name."""
    twice = CALLING | {"tool_calls": [CALL, copy.deepcopy(CALL) | {"function": {"name": "look_up", "arguments": {}}}]}
    assert "one call at a time" in refused("calls", {"messages": [ASK, twice]})

    def told(template, *turns):
        renderer = Renderer(with_template(tokenizer, template), "chat", 512)
        with pytest.raises(DataError) as caught:
            tokenize(read_rows(write({"messages": [ASK, *turns]}), "completion"), renderer)
        return caught.value.problems[0]

    first_only = THINKING.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    assert "the key 'tool_calls' of message 2" in told(first_only, twice)
    names_only = THINKING.replace("{{ c.function.arguments | tojson }}", "")
    assert "the key 'tool_calls' of message 2" in told(names_only, CALLING)
    spoken = CALLING | {"content": "What is the weather in Köln?"}  # which the user said too
    assert "the key 'content' of message 2" in told(CALLS, spoken, RESULT, SAID | {"reasoning_content": None})


def test_tools_that_are_not_written_are_refused(refused):
    """A template without tools, and bare text, take no row with tools: the column is named, with its place."""
    row = {"prompt": "q", "completion": "a", "tools": [TOOL]}
    at = f"1:{column_of(row, '[{')}: "
    assert refused("turns", row).startswith(f"{at}the chat template does not write tool 1 (get_weather); use a ")
    assert refused("plain", row) == (
        f"{at}template: plain writes no tools; use template: chat, or leave them out: data.ignore: [tools]"
    )
    named = {"messages": [ASK | {"name": "Ann"}, {"role": "assistant", "content": "a"}]}
    assert "template: plain writes no name" in refused("plain", named)


def test_one_tool_of_several_and_its_description_count(tokenizer, write):
    """A template that writes some tools only, or names without descriptions, loses text."""
    other = {"type": "function", "function": {"name": "look_up", "description": "Read a book."}}
    row = {"prompt": "q", "completion": "a", "tools": [TOOL, other]}
    for old, new, lost in (
        ("for t in tools", "for t in tools[:1]", "tool 2 (look_up)"),
        ("t | tojson", "t.function.name", "tool 1 (get_weather), tool 2 (look_up)"),
    ):
        renderer = Renderer(with_template(tokenizer, THINKING.replace(old, new)), "chat", 512)
        with pytest.raises(DataError, match="does not write ") as caught:
            tokenize(read_rows(write(row), "completion"), renderer)
        assert f"does not write {lost};" in caught.value.problems[0]


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How far ahead.", "minimum": 1},
    },
    "required": ["city"],
}
NAMES = "{{ t.function.name }}: {{ t.function.description }}"
EACH = "{% for k, v in t.function.parameters.properties.items() %}"


@pytest.mark.parametrize(
    ("written", "lost"),
    [
        ("{{ t | tojson }}", []),
        (f"{NAMES}{EACH}{{{{ k }}}}: {{{{ v.type }}}} // {{{{ v.description }}}}{{% endfor %}}", []),  # as gpt-oss
        (NAMES, ["city", "days"]),
        (NAMES + "{{ t.function.parameters.properties | length }}", ["city", "days"]),
        (f"{NAMES}{EACH}{{{{ k }}}}{{% endfor %}}", ["city", "days"]),
        (f"{NAMES}{EACH}{{{{ v.description }}}}{{% endfor %}}", ["city", "days"]),
        (f"{NAMES}{EACH}{{% if loop.first %}}{{{{ k }}}} {{{{ v.description }}}}{{% endif %}}{{% endfor %}}", ["days"]),
        ("{{ t.function.name }}", None),
    ],
)
def test_parameters_of_tools_count(tokenizer, written, lost):
    """The name and description of each parameter have to show; other words of its schema need not."""
    chat = ChatTemplate(with_template(tokenizer, THINKING.replace("{{ t | tojson }}", written)))
    tool = {"type": "function", "function": TOOL["function"] | {"parameters": PARAMETERS}}
    unread = chat.unread([Message("user", "q")], Given.of({"tools": [tool]}))
    whole = ["tool 1 (get_weather)"]  # of which no part is told as well
    told = whole if lost is None else [f"the parameter {name!r} of tool 1 (get_weather)" for name in lost]
    assert [one.what for one in unread] == told and {one.name for one in unread} <= {"tools"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": [1, 2], "flag": True},
        {"n": 0},
        {"flag": False},
        {"x": 2.5},
        {"id": 7, "type": "a", "index": 1},
        {"inner": {"n": [{"m": -1}]}},
        {"": {}},
        '{"n": [1, 2]}',
    ],
)
@pytest.mark.parametrize(
    ("written", "enough"),
    [
        ("{{ a | tojson }}", True),
        ("{{ a }}", True),
        ("{% for k, v in a.items() %}<{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}", True),
        ("", False),
        ("{{ a | length }}", False),
        ("{% for k in a %}{{ k }}{% endfor %}", False),
        ("{% for v in a.values() %}{{ v | tojson }}{% endfor %}", False),
    ],
)
def test_arguments_without_text_count(tokenizer, arguments, written, enough):
    """Numbers, truth values and names in the arguments of a call have to show, however they are nested or called."""
    old = THINKING[THINKING.index("{% if c.function.arguments is string") : THINKING.index("</call>")]
    chat = ChatTemplate(with_template(tokenizer, THINKING.replace(old, "{% set a = c.function.arguments %}" + written)))
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    unread = [one.what for one in chat.unread([Message("user", "q"), Message.of(call)])]
    only_name = arguments == {"": {}} and "for k in" in written  # there is nothing but the name
    assert unread == ([] if enough or only_name else ["the key 'tool_calls' of message 2 (assistant)"])


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"enable_thinking": True}, "'enable_thinking' is no variable of the chat template (it reads think)"),
        ({"add_generation_prompt": True}, "'add_generation_prompt' is not for rows to set"),
        ({"tokenize": True}, "'tokenize' is not for rows to set"),
        ({"chat_template": "{{ 1 }}"}, "'chat_template' is not for rows to set"),
        ({"eos_token": "!"}, "'eos_token' is not for rows to set"),
        ({"namespace": 1}, "'namespace' is not for rows to set"),
    ],
)
def test_arguments_that_the_template_does_not_read_are_refused(refused, kwargs, told):
    """An unknown variable, and one of the library's or the tokenizer's own, is refused by name with its place."""
    row = {"prompt": "q", "completion": "a", "chat_template_kwargs": kwargs}
    assert refused("thinking", row) == f"1:{column_of(row, '{', 'kwargs')}: chat_template_kwargs: {told}"


DATED = (
    "{{ bos_token }}Today is {{ strftime_now('%d %b %Y') }}.\n{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    + TURNS.removeprefix("{{ bos_token }}")
)


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["plain", "tools"])
def test_a_template_that_writes_the_day_writes_the_day_that_is_set(tokenizer, write, tools):
    """On whatever day rows are read; without one set it is refused, as the same rows would be other tokens tomorrow."""
    other = with_template(tokenizer, DATED)
    with pytest.raises(ValueError, match=r"writes the day on which it is used .* set data\.date"):
        Renderer(other, "chat", 4096)
    row = {"prompt": "Hello", "completion": "Hi"} | ({"tools": tools} if tools else {})
    texts, hashes = [], []
    for day in (date(2024, 7, 26), date(2025, 1, 2)):
        renderer = Renderer(other, "chat", 4096, date=day)
        (one,) = tokenize(read_rows(write(row), "completion"), renderer).sequences[0]
        texts.append(other.decode(list(one.ids)))
        hashes.append(renderer.template_hash)
    assert "Today is 26 Jul 2024." in texts[0] and "Today is 02 Jan 2025." in texts[1]
    assert hashes[0] != hashes[1] and Renderer(other, "plain", 4096).template_hash not in hashes
    plain = [Renderer(tokenizer, "chat", 4096, date=day).template_hash for day in (None, date(2024, 7, 26))]
    assert plain[0] == plain[1]  # of a template that writes none


def test_a_library_that_does_not_tell_the_day_is_refused(tokenizer, monkeypatch):
    """That it is told is tried: else the day on which it is used would be written without a word."""
    other = with_template(tokenizer, DATED)
    monkeypatch.setattr(chat_template, "_telling", lambda date, source: contextlib.nullcontext())
    with pytest.raises(ValueError, match=r"cannot be told data\.date here: told 1999-12-31 it writes"):
        Renderer(other, "chat", 4096, date=date(2024, 7, 26))


def test_the_day_is_told_to_each_of_several_templates(tokenizer):
    """A tokenizer may have one for conversations with tools, and one for others."""
    other = with_template(tokenizer, {"default": DATED, "tool_use": DATED})
    text = ChatTemplate(other, date(2024, 7, 26)).write((Message("user", "q"),), Given.of({"tools": [TOOL]}))
    assert "Today is 26 Jul 2024." in text
    assert "26 Jul 2024" in ChatTemplate(other, date(2024, 7, 26)).write((Message("user", "q"),))


def test_two_threads_are_told_their_own_day(tokenizer):
    """One that ends must not put back what another one needs."""
    other = with_template(tokenizer, DATED)
    days = [date(2024, 7, day) for day in range(1, 9)]

    def written(day):
        template = ChatTemplate(other, day)
        return {template.write((Message("user", f"q {n}"),)).split(".")[0] for n in range(60)}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(written, days))
    assert found == [{f"{other.bos_token}Today is {day:%d %b %Y}"} for day in days]


def test_a_templates_own_variables_are_not_for_rows(tokenizer, write):
    """A name that the template sets in a branch is its own, unless it asks first whether it was given."""
    setting = "{% if messages | length > 9 %}{% set mood = 'x' %}{% endif %}{{ mood }}" + THINKING
    asking = "{% if not mood is defined %}{% set mood = 'x' %}{% endif %}{{ mood }}" + THINKING
    row = {"prompt": "q", "completion": "a", "chat_template_kwargs": {"mood": "glad"}}
    examples = read_rows(write(row), "completion")
    with pytest.raises(DataError, match=r"'mood' is no variable of the chat template \(it reads think\)"):
        tokenize(examples, Renderer(with_template(tokenizer, setting), "chat", 512))
    (one,) = tokenize(examples, Renderer(with_template(tokenizer, asking), "chat", 512)).sequences[0]
    assert tokenizer.decode(list(one.ids)).startswith("glad")


def test_roles_are_taken_where_the_template_writes_them(rendered, refused):
    """A developer's turn is written by one template and refused under one that leaves it out; others are unknown."""
    row = {"messages": [{"role": "developer", "content": "Be brief."}, ASK, {"role": "assistant", "content": "a"}]}
    assert "<|user|>\nBe brief.<|end|>" in rendered("turns", row)[0][0]
    assert refused("thinking", row) == "1:15: the chat template leaves out message 1 of the prompt (developer)"
    told = refused("turns", {"messages": [{"role": "bot", "content": "x"}, ASK, SAID]})
    assert told.startswith(
        "1:24: 'messages' message 1 has the role \"bot\"; expected one of system, user, assistant, tool"
    )


def test_an_earlier_answer_that_is_lost_is_refused(refused, tokenizer, write):
    """An assistant's turn may lose its reasoning, not what it said last."""
    losing = TURNS.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else '' }}")
    renderer = Renderer(with_template(tokenizer, losing), "chat", 512)
    row = {
        "messages": [
            ASK,
            {"role": "assistant", "content": "Because.\nGrey."},
            ASK,
            {"role": "assistant", "content": "b"},
        ]
    }
    with pytest.raises(DataError, match=r"leaves out message 2 of the prompt \(assistant\)"):
        tokenize(read_rows(write(row), "completion"), renderer)


@pytest.mark.parametrize("where", ["tools", "arguments", "reasoning", "kwargs"])
def test_special_tokens_are_refused_wherever_they_stand(refused, where):
    """A special token in a tool, a call, a thought or an argument would be read as control, like one in a content."""
    called, tool, said, kwargs = copy.deepcopy(CALLING), copy.deepcopy(TOOL), dict(SAID), {}
    if where == "tools":
        tool["function"]["parameters"] = {"type": "object", "properties": {"<|end|>": {}}}
    elif where == "arguments":
        called["tool_calls"][0]["function"]["arguments"]["city"] = "<|end|>"
    elif where == "reasoning":
        said["reasoning_content"] = "so <|end|>"
    else:
        kwargs = {"think": "<|end|>"}
    row = {"messages": [ASK, called, RESULT, said], "tools": [tool], "chat_template_kwargs": kwargs}
    assert "holds the special token '<|end|>'" in refused("thinking", row)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tools": "[{"}, "1:45: 'tools' is a text that is no JSON (Expecting property name enclosed in double quotes"),
        ({"tools": '[{"a": 1, "a": 2}]'}, "1:45: 'tools' is a text that is no JSON (a key appears twice); expected"),
        ({"tools": [1]}, "1:45: 'tools' is no list of objects; expected a list of objects, or JSON text of one"),
        ({"tools": 7}, "1:45: 'tools' is no list of objects"),
        ({"tools": [{"name": "\ud800"}]}, "1:45: 'tools': it holds half a surrogate pair"),
        ({"chat_template_kwargs": [1]}, "1:60: 'chat_template_kwargs' is no object; expected an object, or JSON"),
        (
            {"completion": [{"role": "assistant", "content": "a", "name": "\udc00"}]},
            "1:78: 'name' of 'completion' message 1: it holds half a surrogate pair",
        ),
        (
            {"completion": [{"role": "assistant", "content": "a", "tool_calls": {"name": "f"}}]},
            "1:84: 'tool_calls' of 'completion' message 1 is an object; expected a list of objects",
        ),
        (
            {"completion": [{"role": "assistant", "content": "a", "tool_calls": "[f()]"}]},
            "1:84: 'tool_calls' of 'completion' message 1: Expecting value",
        ),
        ({"completion": [{"role": "assistant", "content": None}]}, "1:65: the content of 'completion' message 1 is"),
    ],
)  # fmt: skip
def test_what_is_no_tool_or_key_is_named_by_line_and_column(refused, row, told):
    """Wrong types, broken JSON text and half characters are problems of the row."""
    assert refused("thinking", {"prompt": "q", "completion": "a"} | row).startswith(told)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_has_what_json_lines_have(rendered, renderers, write, tmp_path):
    """In parquet every message, call and tool has the keys of all others, null where absent: the ids are the same."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    look = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "required": ["q"]}}}
    asked = copy.deepcopy(CALLING)
    asked["tool_calls"] = [{"id": "2", "type": "function", "function": {"name": "look_up", "arguments": {"q": "x"}}}]
    rows = [
        {"messages": [ASK, CALLING, RESULT, SAID], "tools": [TOOL, look], "chat_template_kwargs": {"think": True}},
        {"messages": [ASK, asked], "tools": [look], "chat_template_kwargs": None},
        {"messages": [ASK, {"role": "assistant", "content": "a"}], "tools": None, "chat_template_kwargs": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    lines, table = (
        tokenize(read_rows(path, "completion"), renderers["thinking"])
        for path in (write(*rows), tmp_path / "rows.parquet")
    )
    assert table.sequences == lines.sequences and len(table) == 3
    prompts = [{"prompt": row["messages"][:1], "tools": row["tools"]} for row in rows]
    pq.write_table(pa.Table.from_pylist(prompts), tmp_path / "prompts.parquet")
    lines, table = (
        read_rows(path, "prompt") for path in (write(*prompts, name="prompts.jsonl"), tmp_path / "prompts.parquet")
    )
    assert [one.given for one in table] == [one.given for one in lines] == [Given.of(one.extra) for one in table]


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "columns", "told"),
    [
        ("preference", {"chosen": "best", "rejected": "best"}, "'best' twice, as 'chosen' and 'rejected'"),
        ("prompt", {"prompt": "q", "answer": "q"}, "'q' twice, as 'prompt' and 'answer'"),
        ("prompt", {"answer": "prompt"}, "'prompt' would be read twice, as 'answer' and under its own name"),
        ("preference", {"prompt": "chosen"}, "'chosen' would be read twice, as 'prompt'"),
        ("unpaired", {"prompt": "messages"}, "'messages' would be read twice, as 'prompt'"),
        ("completion", {"tools": "prompt"}, "'prompt' would be read twice, as 'tools'"),
    ],
)
def test_a_column_is_read_once(write, shape, columns, told):
    """`columns` that gives one of the file's columns two meanings is refused, in so many words or through our names."""
    with pytest.raises(ValueError, match=told):
        read_rows(write({"prompt": "q"}), shape, columns=columns)


def test_columns_may_be_swapped_or_renamed(write):
    """Names that change places are no column read twice, and neither is an answer under another answer's name."""
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    (pair,) = read_rows(write(row), "preference", columns={"chosen": "rejected", "rejected": "chosen"})
    assert (pair.chosen, pair.rejected) == ("b", "a")
    assert read_rows(write(row), "completion", columns={"completion": "chosen"})[0].completion == "a"


def test_a_renamed_column_is_not_overwritten(write):
    """A file's own column of the name that another one is given does not take its place, wherever it stands."""
    rows = [{"prompt": "q", "gold": "4", "answer": "?"}, {"answer": "?", "prompt": "r", "gold": "4"}]
    found, columns = read_set(write(*rows), "prompt", columns={"answer": "gold"})
    assert [one.extra for one in found] == [{"answer": "4"}] * 2
    assert (columns.read, columns.ignored) == (("prompt",), ("gold", "answer"))


def test_tools_under_another_name_are_not_the_templates(write):
    """A column can be kept from the template by giving it another name, and be given to it under any."""
    row = {"prompt": "q", "tools": [TOOL], "functions": [TOOL, TOOL]}
    (one,) = read_rows(write(row), "prompt", columns={"toolbox": "tools"})
    assert one.given == Given() and one.extra == {"toolbox": [TOOL], "functions": [TOOL, TOOL]}
    (one,) = read_rows(write(row), "prompt", columns={"tools": "functions"})
    assert one.given == Given.of({"tools": [TOOL, TOOL]}) and one.extra == {"tools": [TOOL, TOOL]}


def test_what_was_read_is_told(write):
    """Every column, and every key of a message, is among those read or those ignored."""
    row = {
        "id": 7,
        "chosen": [ASK | {"name": "Ann"}, SAID],
        "rejected": [ASK | {"name": "Ann"}, CALLING],
        "tools": [TOOL],
    }
    _, columns = read_set(write(row, row | {"source": "web"}), "preference", ignore=["name"])
    assert str(columns) == (
        "read: 'chosen', 'rejected', 'tools'; ignored: 'id', 'source'; keys of messages read: 'reasoning_content', "
        "'tool_calls'; keys of messages ignored: 'name'"
    )
    _, columns = read_set(write({"prompt": "p", "messages": [ASK, SAID], "label": True}), "completion")
    assert columns.read == ("messages", "label") and columns.ignored == ("prompt",)
    _, columns = read_set(write({"prompt": "p", "chosen": "a", "rejected": "b"}), "completion")
    assert columns.ignored == ("rejected",)
    with pytest.raises(ValueError, match="ignore must name what a row can do without; got 'prompt'"):
        read_set(write(row), "preference", ignore=["prompt"])


def test_prompts_with_other_tools_are_other_prompts(write):
    """Rows alike but for their tools or their arguments neither repeat nor contradict each other."""
    rows = [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": "b", "rejected": "a", "tools": [TOOL]},
        {"prompt": "q", "chosen": "a", "rejected": "b", "chat_template_kwargs": {"think": False}},
        {"prompt": "q", "chosen": "a", "rejected": "b", "tools": json.dumps([TOOL])},
    ]
    found = duplicates_of(read_rows(write(*rows), "preference"))
    assert (found.duplicates, found.contradictions) == (0, 1)
    assert found.first_contradictions == (("rows.jsonl:4", "rows.jsonl:2"),)
    assert duplicates_of(read_rows(write(*rows), "prompt")).first_duplicates == found.first_contradictions


def test_a_template_is_told_once_for_all(tokenizer):
    """What is looked at is the template alone: with no keys and no tools nothing is rendered a second time."""
    template = ChatTemplate(with_template(tokenizer, TURNS))
    calls = []
    template._call = lambda tree, opening: calls.append(tree) or ""  # type: ignore[method-assign]
    assert template.unread((Message("user", "q"), Message("assistant", "a"))) == [] and calls == []
    with pytest.raises(RenderError, match="no variable of the chat template"):
        template.write((Message("user", "q"),), Given.of({"chat_template_kwargs": {"x": 1}}))
