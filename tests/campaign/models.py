"""Model folders that are damaged, foreign, or made to run code, to lead elsewhere, or to cost time and memory."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.agreement import validate_and_train
from tests.campaign.data import Touch
from tests.campaign.recipes import EDGES
from tests.campaign.stage import Stage
from tests.campaign.world import recipes, write_recipe
from tests.train.data.test_bad_input import ODD, TEMPLATES, bent, garbled
from tests.train.preflight.test_validate import BAD, edit

COUNT = 300
Act = Callable[[Path, Path], None]  # of the model's folder and the canary

CODE = """
import os
os.mkdir(@CANARY@)
from transformers import LlamaForCausalLM, LlamaConfig, PreTrainedTokenizerFast
class Evil(LlamaForCausalLM): pass
class EvilConfig(LlamaConfig): pass
class EvilTokenizer(PreTrainedTokenizerFast): pass
def generate(*args, **kwargs): pass
"""
AUTO = dict.fromkeys(("AutoModel", "AutoModelForCausalLM"), "evil.Evil") | {"AutoConfig": "evil.EvilConfig"}
AUTO |= {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}


def change(file: str, **values: Any) -> Act:
    """Set keys of a JSON file."""
    return lambda model, canary: edit(model, file, lambda tree: tree.update(values))


def drop(file: str, *names: str) -> Act:
    return lambda model, canary: edit(model, file, lambda tree: [tree.pop(name, None) for name in names])


def written(file: str, content: str | bytes) -> Act:
    def act(model: Path, canary: Path) -> None:
        data = content if isinstance(content, bytes) else content.replace("@CANARY@", repr(str(canary))).encode()
        (model / file).parent.mkdir(parents=True, exist_ok=True)
        (model / file).write_bytes(data)

    return act


def both(*acts: Act) -> Act:
    def act(model: Path, canary: Path) -> None:
        for one in acts:
            one(model, canary)

    return act


def header(change: Callable[[dict[str, Any]], Any], length: Callable[[int], int] = lambda size: size) -> Act:
    """Change the header of the weight file, and what it says of its own length."""

    def act(model: Path, canary: Path) -> None:
        path = model / "model.safetensors"
        content = path.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        tree = json.loads(content[8 : 8 + size])
        tree = change(tree) or tree
        text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
        path.write_bytes(struct.pack("<Q", length(len(text)) % 2**64) + text + content[8 + size :])

    return act


def template(text: str) -> Act:
    return written("chat_template.jinja", text)


def pickled(name: str) -> Act:
    return lambda model, canary: (model / name).write_bytes(pickle.dumps(Touch(canary))) and None


def index(weights: Any, **more: Any) -> Act:
    """Put an index in place of the weight file, which it may still name: as weights.safetensors."""

    def act(model: Path, canary: Path) -> None:
        (model / "model.safetensors").rename(model / "weights.safetensors")
        tree = {"metadata": {}, "weight_map": weights} | more
        (model / "model.safetensors.index.json").write_text(json.dumps(tree))

    return act


def names(value: Any) -> dict[str, Any]:
    """Return a weight map that says the same of every weight of the toy."""
    layer = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj")
    layer += ("mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")
    found = [f"model.layers.{i}.{part}.weight" for i in range(2) for part in layer]
    return dict.fromkeys([*found, "model.embed_tokens.weight", "model.norm.weight"], value)


def elsewhere(link: bool) -> Act:
    """Let the index name a good file outside the folder."""

    def act(model: Path, canary: Path) -> None:
        index(names("../outside.safetensors"))(model, canary)
        (model / "weights.safetensors").rename(model.parent / "outside.safetensors")
        if link:
            index_file = model / "model.safetensors.index.json"
            index_file.write_text(index_file.read_text().replace("../outside", "inside"))
            (model / "inside.safetensors").symlink_to("../outside.safetensors")

    return act


def _replaced(name: str, make: Callable[[Path], object]) -> Act:
    def act(model: Path, canary: Path) -> None:
        (model / name).unlink()
        make(model / name)

    return act


def _tokens(change: Callable[[dict[str, Any]], Any]) -> Act:
    return lambda model, canary: edit(model, "tokenizer.json", change)


def _set(tree: dict[str, Any], *path: Any, to: Any) -> None:
    for name in path[:-1]:
        tree = tree[name]
    tree[path[-1]] = to


JINJA = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.mkdir(@CANARY@) }}",
    "globals by lipsum": "{{ lipsum.__globals__['os'].mkdir(@CANARY@) }}",
    "globals by attr": "{{ (messages|attr('__class__'))|attr('__base__')|attr('__subclasses__')() }}",
    "a format string": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "an include": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a list that changes": "{% set _ = messages.append(messages) %}{{ messages }}",
    "a loop without end": "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}",
    "a loop in silence": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a text without end": "{{ 'a' * 10**10 }}",
    "a text of texts": "{% set a = 'x' * 1000 %}{{ (a * 1000) * 100000 }}",
    "doubled": "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a macro of itself": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "deep brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a format of width": "{{ '{:>9999999999}'.format(1) }}",
    "padding": "{{ 'x'.center(10**10) }}",
    "a list without end": "{{ range(10**9) | list | length }}",
    "pairs of pairs": "{{ messages | map(attribute='content') | batch(10**9, 'x') | list }}",
    "escapes raised": "{{ raise_exception('\x1b[31m\u202e' + 'x' * 100000) }}",
    "escapes written": "\x1b[2J{% for m in messages %}{{ m.role }}{{ m.content }}{{ eos_token }}{% endfor %}",
    "nothing": "",
    "a mistake": "{% for %}",
    "1 MB": "{#" + "x" * 1_000_000 + "#}{% for m in messages %}{{ m.content }}{% endfor %}",
    "undefined": "{{ x.y.z }}",
    "the clock": "{{ strftime_now('%' * 10000) }}",
    "generation": "{% generation %}{{ messages }}{% endgeneration %}",
}

# name, what is done to the folder, and whether only refusing is right
HAND: list[tuple[str, Act, bool]] = [
    ("as it is", lambda model, canary: None, False),
    (
        "pickled weights alone",
        both(lambda m, c: (m / "model.safetensors").unlink(), pickled("pytorch_model.bin")),
        True,
    ),
    ("pickled weights beside", pickled("pytorch_model.bin"), False),
    ("a pickle as safetensors", pickled("model.safetensors"), True),
    ("a pickle in the index", both(index(names("pytorch_model.bin")), pickled("pytorch_model.bin")), True),
    ("a pickled tokenizer", both(lambda m, c: (m / "tokenizer.json").unlink(), pickled("tokenizer.model")), True),
    ("a pickle as vocabulary", both(lambda m, c: (m / "tokenizer.json").unlink(), pickled("vocab.txt")), True),
    (
        "a pickled training state",
        both(pickled("training_args.bin"), pickled("optimizer.pt"), pickled("scheduler.pt")),
        False,
    ),
    ("code for the model", both(written("evil.py", CODE), change("config.json", auto_map=AUTO)), False),
    (
        "code for an unknown model",
        both(written("evil.py", CODE), change("config.json", auto_map=AUTO, model_type="evil")),
        True,
    ),
    ("code for the tokenizer", both(written("evil.py", CODE), change("tokenizer_config.json", auto_map=AUTO)), False),
    (
        "code for a tokenizer class",
        both(written("evil.py", CODE), change("tokenizer_config.json", auto_map=AUTO, tokenizer_class="EvilTokenizer")),
        False,
    ),
    (
        "code of another's on the hub",
        change("config.json", auto_map={"AutoModelForCausalLM": "nobody/evil--evil.Evil"}, model_type="evil"),
        True,
    ),
    ("code for generate", both(written("custom_generate/generate.py", CODE), written("evil.py", CODE)), False),
    (
        "modules of known names",
        both(written("json.py", CODE), written("torch.py", CODE), written("sitecustomize.py", CODE)),
        False,
    ),
    (
        "trust_remote_code: true",
        both(written("evil.py", CODE), change("config.json", auto_map=AUTO, trust_remote_code=True, model_type="evil")),
        True,
    ),
    (
        "an attention of the hub",
        change("config.json", _attn_implementation="nobody/evil", attn_implementation="nobody/evil"),
        False,
    ),
    ("an attention of no name", change("config.json", attn_implementation="evil"), False),
    (
        "a base elsewhere",
        both(
            lambda m, c: (m / "config.json").unlink(),
            written("adapter_config.json", '{"base_model_name_or_path": "nobody/evil"}'),
        ),
        True,
    ),
    (
        "a base beside its own",
        written("adapter_config.json", '{"base_model_name_or_path": "nobody/evil", "peft_type": "LORA"}'),
        True,
    ),
    ("a name in its config", change("config.json", _name_or_path="nobody/evil"), False),
    ("a name in its tokenizer's", change("tokenizer_config.json", name_or_path="nobody/evil"), False),
    ("an index that leads up", elsewhere(False), True),
    ("an index of a link", elsewhere(True), False),
    ("an index of an absolute path", index(names("/etc/passwd")), True),
    ("an index of the device of zeros", index(names("/dev/zero")), True),
    ("an index of numbers", index(names(5)), True),
    ("an index of nulls", index(names(None)), True),
    ("an index of lists", index(names(["weights.safetensors"])), True),
    ("an index of a folder", both(index(names("sub")), lambda m, c: (m / "sub").mkdir()), True),
    ("an index of a missing file", index(names("missing.safetensors")), True),
    ("an index of escapes", index(names("\x1b[31m\u202e.safetensors")), True),
    ("an index of half a character", index(names("\ud800.safetensors")), True),
    ("an index with a NUL", index(names("a\0b.safetensors")), True),
    ("an index of 100 000 files", index({f"w{i}": f"{i}.safetensors" for i in range(100_000)}), True),
    ("an index that is a list", index([]), True),
    ("an index that is null", index(None), True),
    ("an index that is empty", index({}), True),
    ("an index that is no JSON", both(index({}), written("model.safetensors.index.json", "{")), True),
    ("an index of 6 kB of brackets", both(index({}), written("model.safetensors.index.json", "[" * 6000)), True),
    ("a right index", index(names("weights.safetensors")), False),
    (
        "weights under another name",
        both(index({}), change("config.json", transformers_weights="weights.safetensors")),
        False,
    ),
    ("weights named up", change("config.json", transformers_weights="../toy.safetensors"), True),
    ("weights named a number", change("config.json", transformers_weights=5), True),
    ("weights named a pickle", both(change("config.json", transformers_weights="evil.bin"), pickled("evil.bin")), True),
    ("a header of 2**63 bytes", header(lambda tree: None, lambda size: 2**63), True),
    ("a header of -1 bytes", header(lambda tree: None, lambda size: -1), True),
    ("a header of no bytes", header(lambda tree: b"", lambda size: 0), True),
    ("a header of brackets", header(lambda tree: b"[" * 6000), True),
    ("a header of depth", header(lambda tree: b'{"a":' * 6000 + b"1" + b"}" * 6000), True),
    ("a header of numbers", header(lambda tree: dict.fromkeys(tree, 5)), True),
    (
        "overlapping offsets",
        header(
            lambda tree: [tree[name].update(data_offsets=[0, 4]) for name in tree if name != "__metadata__"] and None
        ),
        True,
    ),
    (
        "negative offsets",
        header(
            lambda tree: [tree[name].update(data_offsets=[-4, 0]) for name in tree if name != "__metadata__"] and None
        ),
        True,
    ),
    (
        "endless shapes",
        header(lambda tree: [tree[name].update(shape=[2**62, 8]) for name in tree if name != "__metadata__"] and None),
        True,
    ),
    (
        "a dtype of no name",
        header(lambda tree: [tree[name].update(dtype="X9") for name in tree if name != "__metadata__"] and None),
        True,
    ),
    ("metadata of another library", header(lambda tree: tree.update(__metadata__={"format": "tf"})), False),
    ("escapes in tensor names", header(lambda tree: {f"\x1b[31m{name}": value for name, value in tree.items()}), True),
    (
        "100 000 more tensors",
        header(
            lambda tree: (
                tree | {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
            )
        ),
        False,
    ),
    *(
        (f"config.json: {name} is {value!r}", change("config.json", **{name: value}), refused)
        for name, value, refused in (
            ("num_hidden_layers", 10**9, True),
            ("num_hidden_layers", 10**5, True),
            ("num_hidden_layers", -1, True),
            ("num_hidden_layers", 0, True),
            ("vocab_size", 10**9, True),
            ("vocab_size", 10**18, True),
            ("vocab_size", -1, True),
            ("vocab_size", 0, True),
            ("hidden_size", 10**12, True),
            ("hidden_size", 0, True),
            ("hidden_size", "x", True),
            ("num_attention_heads", 0, True),
            ("num_attention_heads", 10**9, True),
            ("num_key_value_heads", 0, True),
            ("head_dim", 10**9, True),
            ("head_dim", 0, True),
            ("intermediate_size", 10**12, True),
            ("hidden_act", "evil", True),
            ("hidden_act", None, True),
            ("rms_norm_eps", "nan", True),
            ("rms_norm_eps", -1e308, False),
            ("max_position_embeddings", 10**15, False),
            ("max_position_embeddings", -1, True),
            ("max_position_embeddings", None, False),
            ("max_position_embeddings", "x", True),
            ("rope_parameters", {"rope_type": "evil"}, True),
            ("rope_parameters", 5, True),
            ("rope_parameters", {"rope_type": "yarn", "rope_theta": 0}, False),
            ("rope_parameters", {"rope_type": "default", "rope_theta": -1.0}, False),
            ("model_type", "evil", True),
            ("model_type", 5, True),
            ("model_type", "../evil", True),
            ("model_type", None, True),
            ("dtype", "evil", True),
            ("dtype", "__import__", True),
            ("dtype", 5, False),
            ("dtype", "load", True),
            ("architectures", 5, False),
            ("architectures", ["Evil"], False),
            ("attention_dropout", 1e308, False),
            ("attention_dropout", "x", False),
            ("eos_token_id", 10**9, False),
            ("eos_token_id", "x", False),
            ("pad_token_id", 10**9, False),
            ("pad_token_id", -1, False),
            ("tie_word_embeddings", "x", False),
            ("quantization_config", 5, True),
            ("quantization_config", {"quant_method": "evil"}, True),
            ("torch_dtype", "evil", False),
            ("use_cache", "x", False),
            ("initializer_range", 1e308, False),
            ("id2label", {str(i): "x" for i in range(20_000)}, False),
            ("num_labels", 10**9, False),
            ("transformers_version", "evil", False),
            ("is_encoder_decoder", True, False),
            ("output_attentions", True, False),
            ("return_dict", False, False),
            ("chunk_size_feed_forward", 10**9, False),
            ("pruned_heads", {"0": [0]}, False),
            ("text_config", {"model_type": "evil"}, False),
        )
    ),
    ("config.json of 6 kB of brackets", written("config.json", "[" * 6000), True),
    ("config.json that is a list", written("config.json", "[]"), True),
    ("config.json that is null", written("config.json", "null"), True),
    ("config.json of 50 MB", written("config.json", '{"x": "' + "x" * 50_000_000 + '"}'), True),
    ("config.json with NaN", written("config.json", '{"model_type": NaN}'), True),
    ("config.json in UTF-16", written("config.json", '{"model_type": "llama"}'.encode("utf-16")), True),
    ("config.json that is a folder", _replaced("config.json", lambda path: path.mkdir()), True),
    ("config.json that is a pipe", _replaced("config.json", os.mkfifo), True),
    ("config.json that is a loop", _replaced("config.json", lambda path: path.symlink_to("config.json")), True),
    ("config.json of zeros", _replaced("config.json", lambda path: path.symlink_to("/dev/zero")), True),
    ("tokenizer.json that is a pipe", _replaced("tokenizer.json", os.mkfifo), True),
    ("tokenizer.json of zeros", _replaced("tokenizer.json", lambda path: path.symlink_to("/dev/zero")), True),
    ("weights that are a pipe", _replaced("model.safetensors", os.mkfifo), True),
    ("weights that are a folder", _replaced("model.safetensors", lambda path: path.mkdir()), True),
    ("weights of zeros", _replaced("model.safetensors", lambda path: path.symlink_to("/dev/zero")), True),
    ("weights of the terminal", _replaced("model.safetensors", lambda path: path.symlink_to("/dev/tty")), True),
    ("a template that is a pipe", _replaced("chat_template.jinja", os.mkfifo), True),
    ("a template that is a folder", _replaced("chat_template.jinja", lambda path: path.mkdir()), False),
    ("a template of zeros", _replaced("chat_template.jinja", lambda path: path.symlink_to("/dev/zero")), True),
    ("a template that is not UTF-8", written("chat_template.jinja", b"\xff\xfe{{"), True),
    (
        "many templates",
        change("tokenizer_config.json", chat_template=[{"name": f"t{i}", "template": "x"} for i in range(9999)]),
        False,
    ),
    ("a template that is a number", change("tokenizer_config.json", chat_template=5), False),
    ("a tokenizer's own class", change("tokenizer_config.json", tokenizer_class="os.system"), False),
    ("a tokenizer class that is a number", change("tokenizer_config.json", tokenizer_class=5), True),
    ("an end token that is a number", change("tokenizer_config.json", eos_token=5), True),
    ("an end token of escapes", change("tokenizer_config.json", eos_token="\x1b[31m"), True),
    ("an end token that is empty", change("tokenizer_config.json", eos_token=""), True),
    ("a longest length of -1", change("tokenizer_config.json", model_max_length=-1), False),
    ("a longest length of 1e308", change("tokenizer_config.json", model_max_length=1e308), False),
    ("a longest length in words", change("tokenizer_config.json", model_max_length="x"), False),
    (
        "truncation",
        _tokens(
            lambda tree: tree.update(
                truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
            )
        ),
        False,
    ),
    (
        "padding to 1e9",
        _tokens(
            lambda tree: tree.update(
                padding={
                    "strategy": {"Fixed": 10**9},
                    "direction": "Right",
                    "pad_to_multiple_of": None,
                    "pad_id": 0,
                    "pad_type_id": 0,
                    "pad_token": "x",
                }
            )
        ),
        False,
    ),
    (
        "a pattern that never ends",
        _tokens(
            lambda tree: tree.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
            )
        ),
        False,
    ),
    (
        "a pattern that is none",
        _tokens(
            lambda tree: tree.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
            )
        ),
        True,
    ),
    (
        "a text that grows",
        _tokens(
            lambda tree: tree.update(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10**6})
        ),
        False,
    ),
    (
        "texts that vanish",
        _tokens(lambda tree: tree.update(normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": ""})),
        True,
    ),
    (
        "an added token of 1 MB",
        _tokens(
            lambda tree: tree["added_tokens"].append(tree["added_tokens"][0] | {"id": 320, "content": "x" * 10**6})
        ),
        True,
    ),
    ("an added token of escapes", _tokens(lambda tree: _set(tree, "added_tokens", 1, "content", to="\x1b[31m")), False),
    ("an id of 2**31", _tokens(lambda tree: _set(tree, "model", "vocab", "a", to=2**31)), True),
    ("an id of -1", _tokens(lambda tree: _set(tree, "model", "vocab", "a", to=-1)), True),
    ("two of one id", _tokens(lambda tree: _set(tree, "model", "vocab", "a", to=tree["model"]["vocab"]["b"])), False),
    (
        "100 000 more tokens",
        _tokens(lambda tree: tree["model"]["vocab"].update({f"zz{i}": 320 + i for i in range(100_000)})),
        True,
    ),
    ("an unknown kind of model", _tokens(lambda tree: _set(tree, "model", "type", to="Evil")), True),
    ("dropout of merges", _tokens(lambda tree: _set(tree, "model", "dropout", to=0.5)), False),
    ("tokenizer.json of brackets", written("tokenizer.json", "[" * 6000), True),
    ("generation_config.json of brackets", written("generation_config.json", "[" * 6000), False),
    ("generation_config.json in words", change("generation_config.json", temperature="x", eos_token_id="x"), False),
    (
        "generation_config.json at the edge",
        change("generation_config.json", temperature=1e308, max_length=10**18, num_beams=10**9),
        False,
    ),
    *(
        (
            f"template: {name}",
            template(text),
            name not in ("a list that changes", "the clock", "1 MB", "escapes written"),
        )
        for name, text in JINJA.items()
    ),
    ("no folder at all", lambda model, canary: shutil.rmtree(model), True),
    ("a folder that may not be read", lambda model, canary: (model / "config.json").chmod(0), False),
]

_FILES = ("config.json", "config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json")


def play(stage: Stage) -> None:
    model = stage.world.copy_of_model(stage.folder / "model")
    tree = recipes(stage.world.toy, stage.folder / "run")["dpo" if stage.number % 3 else "lora"]
    tree["model"] = str(model)
    write_recipe(tree, stage.folder / "recipe.yaml")
    refused = False
    number = stage.number
    damages = [(name, act) for name, (_, act, *_) in BAD.items() if act is not None]
    if number < len(HAND):
        stage.name, act, refused = HAND[number]
        act(model, stage.canary)
    elif (number := number - len(HAND)) < len(damages):
        stage.name, damage = damages[number]
        damage(model)
        refused = True
    elif (number := number - len(damages)) < len(TEMPLATES):
        stage.name, written_, _ = TEMPLATES[number]
        stage.name = f"template: {stage.name}"
        if "chat_template" in written_ and written_["chat_template"] is not None:
            (model / "chat_template.jinja").write_text(written_["chat_template"])
        else:
            edit(model, "tokenizer_config.json", lambda one: one.update(written_))
    else:
        mutate(stage, model)
    validate_and_train(stage, refused=refused)


def mutate(stage: Stage, model: Path) -> None:
    rng, values = stage.rng, [*ODD, *EDGES]
    file = rng.choice([*_FILES, "chat_template.jinja", "model.safetensors", "model.safetensors"])
    path = model / file
    if file == "model.safetensors" and rng.random() < 0.6:
        stage.name = "mutated header of weights"
        header(lambda tree: bent(tree, rng, values, [*tree]))(model, stage.canary)
    elif file.endswith(".json") and rng.random() < 0.75:
        stage.name = f"mutated {file}"
        tree = json.loads(path.read_text())
        part = rng.choice([name for name, value in tree.items() if value]) if file == "tokenizer.json" else None
        if part is None:
            tree = bent(tree, rng, values, [*tree])
        else:
            tree[part] = bent(tree[part], rng, values, ["type", "vocab", "content", "id"])
        path.write_text(json.dumps(tree))
    else:
        stage.name = f"garbled {file}"
        path.write_bytes(garbled(path.read_bytes(), rng))
