"""A chat template that takes too much is an error of the model's folder: soon, in any thread, and once."""

from __future__ import annotations

import copy
import functools
import os
import threading
import time
import warnings

import pytest

from humanline.train.data import template_limits
from humanline.train.data.chat_template import ChatTemplate, RenderError
from humanline.train.data.messages import Message
from humanline.train.data.template_limits import TooMuchError
from tests.helpers.chat_templates import LOOPS

TURNS = (Message("user", "hi", place="rows.jsonl:7"), Message("assistant", "hello"))
BIG = "{% set big = 'a' * 1000000 %}"
PILES = BIG + "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [big ~ i] %}{% endfor %}"
GROWS = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x OP ns.x %}{% endfor %}"


def template(tokenizer, text: str) -> ChatTemplate:
    other = copy.deepcopy(tokenizer)
    other.chat_template = text
    return ChatTemplate(other)


@pytest.mark.parametrize(
    "text,said",
    [
        (LOOPS, "more than 0.2 s of CPU time"),
        (PILES, "more than 64 MiB of memory"),
        (GROWS.replace("OP", "+"), "joins more than 20,000,000 characters or items"),
        (GROWS.replace("OP", "+").replace("'aaaaaaaaaa'", "[1]"), "joins more than 20,000,000 characters or items"),
        (GROWS.replace("OP", "~"), "more than 20,000,000 characters"),
        (BIG + "{% for i in range(100000) %}{{ big }}{% endfor %}", "writes more than"),
        (
            BIG + "{% macro m() %}{% for i in range(99999) %}{{ big }}{% endfor %}{% endmacro %}{{ m()|length }}",
            "writes more",
        ),
        (BIG + "{{ range(100000)|map('string')|join(big)|length }}", "writes more"),
        (BIG + "{{ big.join(['']*100000) }}", "writes more"),
        (BIG + "{{ big|replace('a', big) }}", "writes more"),
        (BIG + "{{ big.replace('a', big) }}", "writes more"),
        ("{% for i in range(10**9) %}{% endfor %}", "a number above"),
        ("{{ 'a' * 10**10 }}", "repeats something"),
        ("{% set ns = namespace(x=10) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", "bits"),
        ("{{ 10**(10**8) }}", "bits"),
        ("{{ 'a'|center(10000000000) }}", "a number above"),
        ("{{ 'a'.ljust(10000000000) }}", "a number above"),
        ("{{ {'a': 1}|tojson(indent=10000000000) }}", "a number above"),
        ("{{ {'a': 1}|tojson(false, 10000000000) }}", "a number above"),
        ("{{ ['a']|map('center', 10000000000)|list }}", "a number above"),
        ("{{ 'a'|attr('center')(10000000000) }}", "a number above"),
        ("{{ 'a'.encode().ljust(10000000000) }}", "a number above"),
        ("{{ (1).to_bytes(10000000000, 'big')|length }}", "a number above"),
        ("{{ [1]|batch(10000000000, 'x')|list }}", "a number above"),
        ("{{ 1|round(10000000000) }}", "a number above"),
        ("{% set r = range %}{% macro m(f) %}{{ f(1000000000) }}{% endmacro %}{{ m(r) }}", "a number above"),
        ("{{ '%10000000000d'|format(1) }}", "pads"),
        ("{{ '%*d' % (10000000000, 1) }}", "pads"),
        ("{{ '{:10000000000}'.format(1) }}", "pads"),
    ],
)
def test_a_template_that_takes_too_much_is_refused(tokenizer, monkeypatch, text, said):
    """Loops in loops, doubled text, and operations that make much of little are ended, and said of the model."""
    # Each limit is lowered for what it alone ends: a slow processor reaches .2 s before another limit says its word.
    if said.endswith("CPU time"):
        monkeypatch.setattr(template_limits, "SECONDS", 0.2)
    if said.endswith("memory"):
        monkeypatch.setattr(template_limits, "MEMORY", 1 << 26)
    started = time.process_time()
    with pytest.raises(TooMuchError, match=rf"rows\.jsonl:7: the chat template of .* takes too much: .*{said}"):
        template(tokenizer, text).write(TURNS)
    assert time.process_time() - started < 5


def test_templates_do_as_before_within_the_limits(tokenizer):
    """What a template may do it does with the same result; what it refuses is still the example's fault."""
    text = (
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for one in messages %}{{ m(one.role) ~ ' ' * 2 }}"
        "{{ one.content|trim|replace('h', 'H')|indent(2) }}"
        "{{ '%3d|%s' % (7, 'b') }}{{ '%5.2f'|format(1.5) }}{% endfor %}"
        "{{ [1, 2, 'x']|join('-') }}{{ '{:>4}'.format(2) }}{{ 2**10 }}{{ 7 % 4 }}"
        "{{ [0] * 3 }}{{ {'a': 1}|tojson(indent=1) }}"
    )
    wanted = '<user>  Hi  7|b 1.50<assistant>  Hello  7|b 1.501-2-x   210243[0, 0, 0]{\n "a": 1\n}'
    assert template(tokenizer, text).write(TURNS) == wanted
    with pytest.raises(RenderError, match="refuses the roles user, assistant: no such role"):
        template(tokenizer, "{{ raise_exception('no such role') }}").write(TURNS)
    with pytest.raises(RenderError, match="recursion"):
        template(tokenizer, "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}").write(TURNS)
    with pytest.raises(RenderError, match="recursion"):
        template(tokenizer, "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}").write(TURNS)


@pytest.mark.parametrize("number", ["12345678", "1700000000", "9007199254740993", "1700000000.25", "-12345678"])
def test_numbers_of_the_data_may_be_large(tokenizer, number):
    """An identifier or a time of a tool call is text to write, not a length: whatever is called with it."""
    calls = f'{{"tool_calls": [{{"function": {{"name": "f", "arguments": {{"id": {number}}}}}}}]}}'
    turns = (Message("user", "hi"), Message("assistant", "", calls))
    text = (
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for one in messages if one.tool_calls %}"
        "{% for k, v in one.tool_calls[0].function.arguments.items() %}"
        "{{ v|tojson }} {{ v|round(1) == v|round(1) }} {{ m(v) }} {{ m(x=v) }} {{ v|string|center(3) }}"
        "{{ {k: v}|tojson(indent=none) }}{{ [v]|map('tojson')|join }}{{ {v: 'x'}.get(v) }}{{ [v].index(v) }}"
        "{{ dict(a=v).a }}{{ [v]|batch(2, v)|first|last }}{{ 'a'|truncate(20000000) }}"
        "{% endfor %}{% endfor %}"
    )
    wanted = f'{number} True <{number}> <{number}> {number}{{"id": {number}}}{number}x0{number}{number}a'
    assert template(tokenizer, text).write(turns) == wanted
    with pytest.raises(RenderError, match=number):
        template(
            tokenizer, "{{ raise_exception(messages[1].tool_calls[0].function.arguments.id) if messages[1] }}"
        ).write(turns)


def test_a_rendering_is_ended_in_the_thread_that_it_is_in(tokenizer, monkeypatch):
    """Two threads render: the one that loops is ended, the other goes on, and nothing arrives later."""
    monkeypatch.setattr(template_limits, "SECONDS", 0.2)
    found: list[object] = []

    def loop():
        try:
            template(tokenizer, LOOPS).write(TURNS)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    healthy = template(tokenizer, tokenizer.chat_template)
    texts = set()
    while thread.is_alive():
        texts.add(healthy.write(TURNS))
    for _ in range(200):
        texts.add(healthy.write(TURNS))
        time.sleep(0.001)
    assert [type(one) for one in found] == [TooMuchError] and len(texts) == 1


def test_the_thread_that_looks_ends_when_there_is_nothing_to_see(tokenizer, monkeypatch):
    """It is there while templates are rendered, ends soon after, and comes back."""
    monkeypatch.setattr(template_limits, "_IDLE", 2)
    healthy = template(tokenizer, tokenizer.chat_template)
    for _ in range(2):
        healthy.write(TURNS)
        watching = template_limits._WATCH._thread
        assert watching is not None and watching.daemon
        watching.join(timeout=10)
        assert not watching.is_alive()


def test_memory_counts_from_the_look_before_a_rendering_is_seen(monkeypatch):
    """What the process took between renderings that follow each other at once is not the later one's."""
    taken, looks = [1000], [0]

    def memory() -> int:
        looks[0] += 1
        return taken[0]

    def rendering(sizes: list[int]) -> str:
        for taken[0] in sizes:
            enough = looks[0] + 2  # one may have begun before
            while looks[0] < enough:
                time.sleep(0.001)
        return "done"

    monkeypatch.setattr(template_limits, "_memory", memory)
    monkeypatch.setattr(template_limits, "_LOOK", 0.001)
    monkeypatch.setattr(template_limits, "MEMORY", 100)
    watch = template_limits._Watch()
    for before in range(1000, 2000, 90):
        assert watch.run(functools.partial(rendering, [before, before + 90])) == "done"
    with pytest.raises(TooMuchError, match="of memory"):
        watch.run(lambda: rendering([5000, 5000, 5101, 5101]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_renderings_of_other_threads_are_forgotten_in_a_forked_process(tokenizer):
    """The child has none of the parent's threads, and nothing asks for their clocks; its own are watched."""
    inside, done = threading.Event(), threading.Event()

    def work() -> str:
        inside.set()
        done.wait(30)
        return "done"

    thread = threading.Thread(target=template_limits.within_limits, args=(work,))
    thread.start()
    assert inside.wait(30)
    watch = template_limits._WATCH
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            alone = template_limits.within_limits(lambda: str(list(watch._jobs) == [threading.get_ident()]))
            watched = watch._thread is not None and watch._thread.is_alive()
            os._exit(0 if alone == "True" and watched and not watch._jobs else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.ident in watch._jobs
    done.set()
    thread.join(30)
    assert not thread.is_alive() and not watch._jobs
