"""A tokenizer from scratch: byte-level BPE with a chat template, trained on one's own text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from humanline._checks import fail

PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL_TOKENS = (PAD, BOS, END, *ROLE_TOKENS)
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)  # every byte is a token, so that any text can be written
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    r"{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with a chat template on some texts.

    Parameters
    ----------
    texts : iterable of str
        Any strings; every text can be encoded afterwards, text like these with the fewest tokens.
    vocab_size : int
        The largest number of tokens, >= 262 (256 bytes and 6 special tokens); short texts give fewer.

    Raises
    ------
    ValueError
        If `vocab_size` is below 262.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < SMALLEST_VOCAB:
        rule = f"be an integer >= {SMALLEST_VOCAB} (256 bytes and {len(SPECIAL_TOKENS)} special tokens)"
        raise fail("vocab_size", rule, vocab_size)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLE_TOKENS),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
