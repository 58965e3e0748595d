"""A new tokenizer and model: what is written, and that it is whole, loadable and the same each time."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from humanline.system.files import OutputError
from humanline.train.data.messages import Message
from humanline.train.data.render import Renderer
from humanline.train.policy import new_model as module
from humanline.train.policy.new_model import new_model, tiny_llama
from humanline.train.policy.new_tokenizer import SPECIAL_TOKENS, train_tokenizer
from tests.helpers.rows import render

SMALL = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "max_length": 64}
ROWS = [{"question": "What is the cat on?", "answer": ["The mat.", {"note": "zebra zebra"}]}] * 4


@pytest.fixture
def text(tmp_path):
    """Offer a small JSON lines file."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


def test_the_files_load_like_any_model(text, tmp_path):
    """What is written loads with the Auto classes, has the right token ids and generates by sampling."""
    out = new_model(tmp_path / "deep" / "model", text=text, **SMALL)
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    assert (out / "model.safetensors").is_file()
    assert not list(out.glob("*.bin"))
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    for name, expected in ids.items():
        assert getattr(tokenizer, name) == getattr(model.config, name) == expected
        assert getattr(model.generation_config, name) == expected
    assert model.generation_config.do_sample is True
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 64
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    prompt = torch.tensor([Renderer(tokenizer, "chat", 64).render_prompt((Message("user", "cat?"),))])
    assert model.generate(prompt, max_new_tokens=3).shape[1] > prompt.shape[1]


def test_the_tokenizer_survives_saving(tokenizer, tmp_path):
    """A saved and loaded tokenizer has the same template, special tokens and ids."""
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    renderers = [Renderer(each, "chat", 128) for each in (tokenizer, loaded)]
    prompt = (Message("system", "a  b"), Message("user", "The cat\n\tsat <on> the mat 🙂"))
    assert render(renderers[0], prompt, " x ") == render(renderers[1], prompt, " x ")
    assert renderers[0].template_hash == renderers[1].template_hash
    assert set(loaded.all_special_tokens) == set(SPECIAL_TOKENS)
    assert loaded.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces\n\n\ttab", "東京 🙂 \x00\x7f", "don't . , ! ?", "\u2028e\u0301"]
)
def test_any_text_comes_back(tokenizer, text):
    """Every text, seen in training or not, decodes to itself."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_the_same_seed_gives_the_same_bytes(text, tmp_path):
    """Weights and tokenizer are byte for byte the same for the same seed, and the weights differ for another."""
    paths = [new_model(tmp_path / name, text=text, seed=seed, **SMALL) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    weights = [(path / "model.safetensors").read_bytes() for path in paths]
    tokenizers = [(path / "tokenizer.json").read_bytes() for path in paths]
    assert weights[0] == weights[1] != weights[2]
    assert tokenizers[0] == tokenizers[1] == tokenizers[2]


def test_the_global_random_state_is_left_alone(tokenizer):
    """Building a model neither depends on torch's global random state nor changes it."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = tiny_llama(tokenizer, hidden_size=16, layers=1, heads=2)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    second = tiny_llama(tokenizer, hidden_size=16, layers=1, heads=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_size_is_as_asked(tokenizer):
    """Width, depth, heads and the feed-forward width of about 8/3 follow the arguments."""
    config = tiny_llama(tokenizer, hidden_size=48, layers=3, heads=4, max_length=77).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (48, 3, 4)
    assert (config.intermediate_size, config.max_position_embeddings) == (128, 77)


def test_sampling_is_from_the_whole_distribution(tokenizer):
    """The generation config cuts nothing off: no top-k, no top-p, temperature 1."""
    settings = tiny_llama(tokenizer, hidden_size=16, layers=1, heads=2).generation_config
    assert (settings.do_sample, settings.temperature, settings.top_k, settings.top_p) == (True, 1.0, 0, 1.0)


def test_fields_choose_the_text(text, tmp_path, monkeypatch):
    """All strings of a row are used, also nested ones, or those in the chosen fields only."""
    seen = []
    train = module.train_tokenizer
    monkeypatch.setattr(
        module, "train_tokenizer", lambda texts, size: seen.append(list(texts)) or train(seen[-1], size)
    )
    new_model(tmp_path / "all", text=text, **SMALL)
    new_model(tmp_path / "one", text=text, fields=["question"], **SMALL)
    assert seen[0] == ["What is the cat on?", "The mat.", "zebra zebra"] * 4
    assert seen[1] == ["What is the cat on?"] * 4


def test_plain_text_files_are_read(tmp_path):
    """A .txt file is one text, with or without a byte order mark."""
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"the cat sat on the mat " * 50)
    tokenizer = AutoTokenizer.from_pretrained(new_model(tmp_path / "model", text=path, **SMALL))
    assert len(tokenizer.encode("the cat sat", add_special_tokens=False)) < 6


def test_an_empty_directory_may_be_used_and_a_full_one_not(text, tmp_path):
    """An existing empty directory is filled; anything else in the way is refused and left as it was."""
    (tmp_path / "empty").mkdir()
    assert (new_model(tmp_path / "empty", text=text, **SMALL) / "config.json").is_file()
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("keep me")
    for path in (full, text):
        with pytest.raises(OutputError, match=r"exists and is not an empty folder; choose another or remove it"):
            new_model(path, text=text, **SMALL)
    assert [item.name for item in full.iterdir()] == ["notes"]


def test_nothing_is_left_when_writing_fails(text, tmp_path, monkeypatch):
    """If writing stops half way, neither the directory nor a temporary one stays behind."""

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        new_model(tmp_path / "model", text=text, **SMALL)
    assert [item.name for item in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_size": 130, "heads": 4}, "hidden_size must be a multiple of 2 \\* heads = 8; got 130"),
        ({"hidden_size": 4, "heads": 4}, "hidden_size must be a multiple of 2 \\* heads = 8; got 4"),
        ({"heads": 0}, "heads must be an integer >= 1; got 0"),
        ({"layers": 1.5}, "layers must be an integer >= 1; got 1.5"),
        ({"max_length": True}, "max_length must be an integer >= 1; got True"),
        ({"seed": -1}, "seed must be an integer from 0 to"),
        ({"vocab_size": 261}, r"vocab_size must be an integer >= 262 \(256 bytes and 6 special tokens\); got 261"),
        (
            {"fields": ["answer", "solution"]},
            "rows.jsonl:1: no field 'solution'; expected it among 'question', 'answer'",
        ),
    ],
)
def test_wrong_arguments_are_named(text, tmp_path, arguments, message):
    """Each argument outside its domain is an error with its name, rule and value, and nothing is written."""
    with pytest.raises(ValueError, match=message):
        new_model(tmp_path / "model", text=text, **SMALL | arguments)
    assert [item.name for item in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        ("empty.txt", b" \n", {}, "empty.txt holds no text to train a tokenizer on"),
        ("empty.jsonl", b"", {}, "empty.jsonl holds no text to train a tokenizer on"),
        ("numbers.jsonl", b'{"a": 1}', {}, "numbers.jsonl holds no text to train a tokenizer on"),
        ("bad.jsonl", b'{"a": "b"}\n{"a": ', {}, r"bad.jsonl:2:\d+: not valid JSON"),
        ("bad.txt", b"fine\nnot \xff fine", {}, "bad.txt:2: byte 0xff is not UTF-8"),
        ("table.csv", b"a,b", {}, "text must be a .txt or .jsonl file; got 'table.csv'"),
        ("plain.txt", b"words", {"fields": ["a"]}, "fields needs a .jsonl file; plain.txt is plain text"),
    ],
)
def test_texts_that_cannot_be_used_are_named(tmp_path, name, content, more, message):
    """A file without text, with broken lines or of another type is an error that says which and where."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        new_model(tmp_path / "model", text=tmp_path / name, **SMALL | more)


def test_a_missing_text_is_named(tmp_path):
    """A missing text file is an error with its full path."""
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        new_model(tmp_path / "model", text=tmp_path / "no.txt")


def test_a_small_text_gives_a_small_vocabulary():
    """The vocabulary holds every byte and the special tokens, and no more merges than the text allows."""
    assert len(train_tokenizer(["ab"], 2048)) == 256 + 6 + 1
