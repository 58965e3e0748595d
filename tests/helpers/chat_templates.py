"""Three small chat templates with the habits of well-known ones, and messages that try them.

THINKING writes reasoning of the last answer alone, several tool calls, arguments as objects or text, and results as a
user's turn. CALLS writes one call a message, without the message's content, results as a string of JSON, and a date
that rows can set. TURNS knows any role and nothing but contents.
"""

from __future__ import annotations

import copy

TURN = "<|{{ m.role if m.role in ('system', 'user', 'assistant') else 'user' }}|>\n"
OPENING = "{% if add_generation_prompt %}<|assistant|>\n{% if think is false %}<think></think>\n{% endif %}{% endif %}"
THINKING = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>\nTools:{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}<|end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'developer' %}"
    + TURN
    + "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>\n{% endif %}"
    "{% if m.role == 'tool' %}<result>{{ m.content }}</result>{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
    "{% endif %}</call>{% endfor %}<|end|>\n{% endif %}{% endfor %}" + OPENING
)
CALLS = (
    "{{ bos_token }}<|system|>\nToday is {{ date_string | default('26 Jul 2024') }}.\n"
    "{% if tools is not none %}{% for t in tools %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}"
    "{% endif %}<|end|>\n{% for m in messages %}"
    + TURN
    + "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}"
    '{{ \'{"name": "\' + c.name + \'", "parameters": \' }}{{ c.arguments | tojson }}}'
    "{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    + OPENING
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|user|>' if m.role not in ('system', 'assistant') else '<|' + m.role + '|>' }}"
    "\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

ASK = {"role": "user", "content": "What is the weather in Köln?"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "unit": "celsius", "days": 2}},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"sky": "grey"}\nand "wet"'}
SAID = {"role": "assistant", "content": "Grey.", "reasoning_content": "The result says so."}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Look at the sky.", "parameters": {"type": "object"}},
}


def with_template(tokenizer, template):
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


# One that never ends.
LOOPS = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
