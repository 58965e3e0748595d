"""Reward models: a conversation, written by the reward model's own template, becomes a score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from humanline.system.imports import import_transformers
from humanline.train.config.rounds import ModelReward
from humanline.train.data.chat_template import ChatTemplate, holds, reads_date
from humanline.train.data.messages import NOTHING, Given, Message, Messages, texts_in
from humanline.train.data.template_limits import TooMuchError
from humanline.train.online.rewards.cache import content_key
from humanline.train.online.rewards.verdict import Verdict, described, shown
from humanline.train.policy.attention import keep_softcap
from humanline.train.policy.errors import ModelError
from humanline.train.policy.hub import HUB, MAIN, fetch_settings
from humanline.train.policy.load import (
    TYPES,
    load_settings,
    load_tokenizer,
    loading,
    refuse_incomplete,
    rope_switch,
    source,
)
from humanline.train.policy.weight_files import refuse_files_elsewhere

Conversation = Sequence[Mapping[str, Any]]  # {"role", "content", ...}, the completion last


class RewardModel:
    """A reward model on a device, with its own tokenizer and template.

    Parameters
    ----------
    reward : ModelReward
    device
        Of torch.

    Raises
    ------
    ModelError
        If the folder is missing, its weights are incomplete or not in safetensors files, its head has more than one
        output or is missing, or its tokenizer has no chat template or, for ArmoRM, is not Llama 3's.
    """

    def __init__(self, reward: ModelReward, device: Any) -> None:
        self._reward = reward
        self._revision = _revision_of(reward)
        self._tokenizer = reward_tokenizer(reward.model, self._revision)
        self._template = ChatTemplate(self._tokenizer)
        self._prompt_end = _prompt_end(reward.model, self._tokenizer) if reward.head == "armorm" else []
        self._model = _load(reward, self._revision).eval().requires_grad_(False)
        self._device = device
        if reward.between_rounds == "device":
            self._model.to(device)
        settings = self._model.config.get_text_config()
        self._named_pad: int | None = getattr(settings, "pad_token_id", None)
        positions = getattr(settings, "max_position_embeddings", None)
        self._longest = min(reward.max_length, positions) if positions else reward.max_length
        self._switch = rope_switch(self._model)
        added = self._tokenizer.added_tokens_decoder.values()
        special = {str(token) for token in added if token.special} | set(map(str, self._tokenizer.all_special_tokens))
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")

    @property
    def identity(self) -> str:
        """Return a key that differs from those of other models and of earlier states of its folder, for a cache."""
        name, local = source(self._reward.model)
        files: list[Any] = [self._revision]
        if local:
            facts = [(path.name, path.stat()) for path in sorted(Path(name).iterdir()) if path.is_file()]
            files = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in facts]
        where = str(Path(name).resolve()) if local else name
        chosen = [self._reward.head, self._reward.precision, self._tokenizer.chat_template]
        return content_key(where, files, chosen).hex()

    def run(
        self, conversations: Sequence[Conversation], tools: Sequence[str] = ()
    ) -> Iterator[list[tuple[int, Verdict]]]:
        """Score conversations, those of like length together.

        Parameters
        ----------
        conversations : sequence of sequence of dict
        tools : sequence of str
            Tools that the completion of each could call, as a list in JSON, or ""; default: none.

        Yields
        ------
        list of (number of the conversation, Verdict)
            The status is "too_long" beyond `max_length` or the model's positions; "error" where the template refuses
            the conversation or a text holds a special token, which could end a turn; "not_finite". The reason of a
            score says what the template did not write.
        """
        lengths: list[tuple[int, int]] = []
        all_ids: dict[int, list[int]] = {}
        remarks: dict[int, str] = {}
        refused = []
        for number, conversation in enumerate(conversations):
            turns, given = tuple(map(Message.of, conversation)), Given(tools[number] if tools else "")
            ids = self._encode(turns, given)
            if isinstance(ids, Verdict):
                refused.append((number, ids))
            else:
                all_ids[number] = ids
                remarks[number] = left_out(self._template, turns, given)
                lengths.append((-len(ids), number))  # the longest first: too little memory shows at once
        if refused:
            yield refused
        order = [number for _, number in sorted(lengths)]
        longer = [number for number in order if self._switch is not None and len(all_ids[number]) > self._switch]
        sides = longer, order[len(longer) :]  # in one pass the longest conversation would turn the embedding of all
        self._model.to(self._device)
        size = self._reward.batch_size
        for batch in (side[begin : begin + size] for side in sides for begin in range(0, len(side), size)):
            scores = self._forward([all_ids[number] for number in batch])
            yield [(number, _finite(score, remarks[number])) for number, score in zip(batch, scores, strict=True)]

    def rest(self) -> None:
        """Leave the device to others, if that is asked for, until the next run."""
        if self._reward.between_rounds == "host":
            self._model.to("cpu")
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _encode(self, turns: Messages, given: Given) -> list[int] | Verdict:
        """Return the token ids of a conversation, or why there are none."""
        for turn in turns:
            for text in texts_in(turn.as_dict()):
                if found := self._special.search(text):
                    return Verdict(None, "error", f"its {turn.role} message holds the special token {found[0]!r}")
        for text in texts_in(given.columns()):
            if found := self._special.search(text):
                return Verdict(None, "error", f"its tools hold the special token {found[0]!r}")
        try:
            text = self._template.write(turns, given)
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)  # the template writes them
        except TooMuchError:
            raise
        except Exception as error:  # a template is a program of its own, and lone surrogates cannot be encoded
            return Verdict(None, "error", f"the reward model's template or tokenizer refuses it: {described(error)}")
        if len(ids) > self._longest:
            return Verdict(None, "too_long", f"{len(ids)} tokens of the reward model; at most {self._longest}")
        if not ids:
            return Verdict(None, "error", "the reward model's template writes nothing")
        if self._prompt_end and _last_at(ids, self._prompt_end) is None:
            return Verdict(None, "error", "the reward model's template writes no opening of an answer")
        return ids

    @torch.no_grad()
    def _forward(self, batch: Sequence[list[int]]) -> list[float]:
        pad = self._pad(batch)
        longest = max(map(len, batch))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in batch], device=self._device)
        there = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch], device=self._device)
        if self._prompt_end:
            ends = torch.tensor([_last_at(row, self._prompt_end) for row in batch], device=self._device)
            scores = self._model.scores(ids, there, ends)
        else:
            scores = self._model(input_ids=ids, attention_mask=there).logits[:, 0]
        return [float(score) for score in scores.float().cpu()]

    def _pad(self, batch: Sequence[list[int]]) -> int:
        """Return the id that padding is made of, and let the model know it.

        Its library scores a conversation at its last token that is not padding. A model that names no pad token scores
        the last token whatever it is; any id that occurs in no row of the batch keeps that.
        """
        if self._named_pad is not None:
            return self._named_pad
        used = set().union(*batch)
        unused = next(id for id in range(len(used) + 1) if id not in used)
        self._model.config.get_text_config().pad_token_id = unused
        return unused


def left_out(template: ChatTemplate, turns: Messages, given: Given) -> str:
    """Say what a reward model's template does not write of a conversation that it takes; nothing if it writes all."""
    if given == NOTHING and all(turn.role in ("system", "user", "assistant") and not turn.keys for turn in turns):
        return ""
    text = template.write(turns, given)
    lost = [f"message {n} ({turn.role})" for n, turn in enumerate(turns, start=1) if not holds(text, turn.content)]
    lost += [one.what for one in template.unread(turns, given)]
    return shown(f"the reward model's template does not write {', '.join(lost)}") if lost else ""


def reward_tokenizer(path: str, revision: str = MAIN) -> Any:
    """Load a reward model's tokenizer; raise ModelError if it has no chat template, or one that writes the day."""
    tokenizer = load_tokenizer(path, revision)
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"reward model {path!r}: its tokenizer has no chat template, so how it reads a conversation is not known; "
            "add the template it was trained with (chat_template.jinja) to its folder"
        )
    if reads_date(tokenizer):
        raise ModelError(
            f"reward model {path!r}: its chat template writes the day on which it is used (strftime_now), so that "
            "scores would change from day to day; give a copy of its folder whose template has a day written out"
        )
    return tokenizer


def refuse_wrong_head(reward: ModelReward, settings: Any) -> None:
    """Raise ModelError if a configuration (of transformers) is not that of a model with such a head."""
    if reward.head == "classifier" and settings.num_labels != 1:
        raise ModelError(
            f"reward model {reward.model!r}: its classification head has {settings.num_labels} outputs; expected 1 "
            "(num_labels in config.json). A language model is no reward model"
        )
    if reward.head == "armorm" and settings.model_type != "llama":
        raise ModelError(f"reward model {reward.model!r}: ArmoRM is a llama, but this is a {settings.model_type}")


def reward_settings(path: str, revision: str = MAIN) -> Any:
    """Load a reward model's configuration (of transformers); raise ModelError if there is none.

    Also if it, or an index beside it, names weights that are not in the model's folder (`refuse_files_elsewhere`).
    """
    name, local = source(path)
    if local:
        refuse_files_elsewhere(name)
    return load_settings(path, f"reward model {path!r}", revision)


def _revision_of(reward: ModelReward) -> str:
    """Return the commit at which a model on the hub is loaded: that of a run, else the newest, for all of its files."""
    if not reward.model.startswith(HUB):
        return MAIN
    return reward.revision or fetch_settings(reward.model.removeprefix(HUB), f"reward model {reward.model!r}")


def _load(reward: ModelReward, revision: str) -> Any:
    import_transformers()
    from transformers import AutoModelForSequenceClassification

    name, local = source(reward.model)
    refuse_wrong_head(reward, reward_settings(reward.model, revision))
    options: dict[str, Any] = {"dtype": TYPES[reward.precision], "local_files_only": local, "revision": revision}
    options["ignore_mismatched_sizes"] = True  # which are refused below, by name
    with loading(f"reward model {reward.model!r}"):
        if reward.head == "armorm":
            from humanline.train.online.rewards.armorm import ArmoRM

            model, loaded = ArmoRM.from_pretrained(name, use_safetensors=True, output_loading_info=True, **options)
        else:
            model, loaded = AutoModelForSequenceClassification.from_pretrained(
                name, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **options
            )
    refuse_incomplete(f"reward model {reward.model!r}", loaded)
    keep_softcap(model)
    return model.head_in_float32() if reward.head == "armorm" else model


def _prompt_end(path: str, tokenizer: Any) -> list[int]:
    from humanline.train.online.rewards.armorm import PROMPT_END

    ids: list[int] = tokenizer.encode(PROMPT_END, add_special_tokens=False)
    markers = [tokenizer.convert_tokens_to_ids(name) for name in re.findall(r"<\|\w+\|>", PROMPT_END)]
    if None in markers or tokenizer.unk_token_id in markers or not set(markers) <= set(ids):
        raise ModelError(
            f"reward model {path!r}: its tokenizer does not know Llama 3's markers of turns ({shown(repr(PROMPT_END))})"
        )
    return ids


def _last_at(ids: Sequence[int], pattern: Sequence[int]) -> int | None:
    """Return where a pattern occurs last, or None."""
    found = (at for at in range(len(ids) - len(pattern), -1, -1) if list(ids[at : at + len(pattern)]) == pattern)
    return next(found, None)


def _finite(score: float, remark: str) -> Verdict:
    if not math.isfinite(score):
        return Verdict(None, "not_finite", f"the reward model gave {score}")
    return Verdict(score, reason=remark)
