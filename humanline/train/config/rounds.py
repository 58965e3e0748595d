"""The section source: fixed rows, or rounds, which make their own data by sampling and scoring."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, PrivateAttr, WithJsonSchema, model_validator

from humanline.schedule import PositiveInt
from humanline.system.hosts import host_of, refuse_host, refuse_network
from humanline.system.own_code import digests_of, one_digest
from humanline.train.config.base import (
    IN_FLOAT32,
    Call,
    Finite,
    NonEmpty,
    NonNegative,
    OwnCodeSection,
    Positive,
    Section,
)
from humanline.train.config.secrets import hidden, learn

# Sections of earlier versions, and where what they held is now.
EARLIER = {"rounds": "source", "sampling": "source.sampling", "scoring": "source.scoring"}


class GenerateEngine(Section):
    """transformers' generate, in this process, with the policy's own weights; reproducible."""

    kind: Literal["generate"] = "generate"
    batch_size: PositiveInt = 64
    """Completions a batch and process."""


class ContinuousEngine(Section):
    """transformers' continuous batching, in this process: for GPUs; reproducible up to the order of its batches."""

    kind: Literal["continuous"] = "continuous"
    num_blocks: PositiveInt | None = None
    """Blocks of its key-value cache; default: as many as free memory holds."""
    max_batch_tokens: PositiveInt | None = None
    """Tokens a forward pass; default: the library's own choice."""


class ByPath(Section):
    """New weights by name: every request names the folder of the round's weights as its model (transformers serve)."""

    kind: Literal["path"] = "path"


class ByAdapter(Section):
    """New weights as an adapter that vllm serve loads (VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora)."""

    kind: Literal["adapter"] = "adapter"


AnyJson = Annotated[JsonValue, WithJsonSchema({})]


class ServerRequest(Section):
    """A request to a server, of which `{path}` stands for the folder of the weights and `{name}` for their name."""

    path: Annotated[str, Field(pattern="^/")]
    """Path below the server's root, with a query where one is wanted; what stands for `{path}` in it is escaped."""
    body: AnyJson = Field(default={})
    """JSON body; `{path}` and `{name}` are filled in in its texts, at any depth."""

    @model_validator(mode="after")
    def _can_be_sent(self) -> ServerRequest:
        _refuse_unsendable(self.texts, self.body)
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the path, and all texts in the body."""
        return (self.path, *_texts(self.body))


PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def _texts(value: JsonValue) -> Iterator[str]:
    """Yield all texts in a JSON value, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _refuse_unsendable(texts: Iterable[str], body: JsonValue) -> None:
    """Raise ValueError if a placeholder stands for nothing, or a body holds numbers that JSON has not."""
    for text in texts:
        unknown = next((word for word in PLACEHOLDER.findall(text) if word not in ("path", "name")), None)
        if unknown is not None:
            raise ValueError(f"{{{unknown}}} stands for nothing; there are {{path}} and {{name}}")
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        raise ValueError("the body holds a number that JSON has not: nan or infinity") from None


class ByRequest(Section):
    """New weights by requests to the server: one (path and body), or several in order (requests).

    In them `{path}` stands for the folder of the weights and `{name}` for their name.
    """

    kind: Literal["request"] = "request"
    path: Annotated[str, Field(pattern="^/")] | None = None
    """Path of the only request, below the server's root."""
    body: AnyJson = Field(default={})
    """Its JSON body."""
    requests: Annotated[tuple[ServerRequest, ...], Field(strict=False)] = ()
    """In place of path and body: requests that are sent one after the other, each when the one before has succeeded."""
    sleep: Annotated[tuple[ServerRequest, ...], Field(strict=False)] = ()
    """Sent when a round's completions are there, so that the server leaves its GPU to training; those above wake it."""

    @model_validator(mode="after")
    def _say_where(self) -> ByRequest:
        if (self.path is None) == (not self.requests):
            raise ValueError("new_weights: request takes a path, or a list of requests, and not both")
        if self.path is None and "body" in self.model_fields_set:
            raise ValueError("new_weights: request: body belongs to path; each of the requests has its own")
        if self.path is not None:
            _refuse_unsendable((self.path, *_texts(self.body)), self.body)
        if not any("{path}" in text for one in self.in_order for text in one.texts):
            raise ValueError(
                'new_weights: request: no request says where the weights are; put "{path}" where the server expects '
                "their folder"
            )
        if any(PLACEHOLDER.search(text) for one in self.sleep for text in one.texts):
            raise ValueError("new_weights.sleep: a server that goes to sleep is told of no weights; leave {path} out")
        return self

    @property
    def in_order(self) -> tuple[ServerRequest, ...]:
        """Return the requests."""
        return self.requests if self.path is None else (ServerRequest(path=self.path, body=self.body),)


class ByVllm(Section):
    """New weights by a reload in place (VLLM_SERVER_DEV_MODE=1 vllm serve), after which its prefix cache is emptied."""

    kind: Literal["vllm"] = "vllm"
    sleep: bool = False
    """Whether it gives its GPU to training between samplings: needs --enable-sleep-mode."""


class BySglang(Section):
    """New weights by SGLang's update from disk, after which its cache is flushed."""

    kind: Literal["sglang"] = "sglang"
    sleep: bool = False
    """Whether it gives its GPU to training between samplings: needs --enable-memory-saver."""


class ByCommand(Section):
    """New weights by a command of yours, which ends when the server has them; `{path}` stands for their folder."""

    kind: Literal["command"] = "command"
    command: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)]
    """The command's words; no shell. It gets the whole environment, secrets too: it is yours, and may need them."""
    seconds: Positive = 1800.0
    """Seconds that it may take."""


NewWeights = Annotated[ByPath | ByAdapter | ByVllm | BySglang | ByRequest | ByCommand, Field(discriminator="kind")]


class ProofConfig(Section):
    """Proof that a server has the weights that it was given, by log-probabilities of a fixed set of texts."""

    tokens: PositiveInt = 8192
    """Tokens of the texts, from the run's own prompts and answers; more of them tell a smaller change."""
    tolerance: Positive = 0.2
    """The run stops where server and policy differ by more than so many nats (root mean square)."""


class ServerAddress(Section):
    """A server on the network, and how it is asked."""

    place: ClassVar[str] = "source.sampling.engine"
    """What messages call these settings."""
    url: Annotated[str, Field(pattern="^https?://")]
    """Its root, without /v1; the only place on the network that it is asked at."""
    allow_hosts: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Hosts, addresses or networks (10.0.0.0/8) that may be asked though they are private or link-local."""
    key_variable: NonEmpty | None = None
    """Environment variable that holds the API key."""
    concurrency: Annotated[int, Field(ge=1, le=65536)] = 16
    """Requests under way at a time."""
    seconds: Positive = 600.0
    """Seconds that a request may take."""
    attempts: PositiveInt = 6
    """How often a request is tried while the server is gone, busy (429) or broken (5xx), with growing waits."""

    @model_validator(mode="after")
    def _may_be_asked(self) -> Self:
        for allowed in self.allow_hosts:
            refuse_network(allowed)
        try:
            host = host_of(self.url)
        except ValueError:
            raise ValueError(
                f"{self.place}.url: {hidden({'url': self.url})['url']!r} is no URL of a server, such as "
                "http://127.0.0.1:8000"
            ) from None
        refuse_host(host, None, self.allow_hosts, self.place)
        return self


class ServerEngine(ServerAddress):
    """Any server that speaks OpenAI's protocol: vllm serve, SGLang, transformers serve."""

    kind: Literal["server"] = "server"
    model: NonEmpty | None = None
    """Name that requests carry; under new_weights: path and adapter the weights' own name takes its place."""
    endpoint: Literal["chat", "completions"] | None = None
    """Which of its endpoints is asked; default: chat for the chat template, and completions for plain text."""
    samples_per_request: PositiveInt = 1
    """Completions asked for at once (n); more only where the server is known to obey."""
    new_weights: NewWeights
    """How the server learns of a round's weights."""
    proof: ProofConfig | None = ProofConfig()
    """Proof that it has them; null: none."""

    @property
    def sleeps(self) -> bool:
        """Return whether the server is put to sleep while the run trains."""
        return bool(getattr(self.new_weights, "sleep", False))


Engine = Annotated[GenerateEngine | ContinuousEngine | ServerEngine, Field(discriminator="kind")]


def _temperature(value: float) -> float:
    if 0 < value < 1e-3:
        raise ValueError(f"must be 0, or 0.001 at least, as logits divided by less are infinite; got {value!r}")
    return value


class SamplingConfig(Section):
    """How completions are drawn; prompts go through the template of training."""

    temperature: Annotated[float, Field(ge=0, le=1e3), AfterValidator(_temperature)] = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1), IN_FLOAT32] = 1.0
    """Tokens are drawn from the smallest set that holds this much probability."""
    max_tokens: PositiveInt = 512
    """Tokens a completion, its end token included; data.max_length goes before it."""
    stop: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Texts that end a completion, which keeps them."""
    system_prompt: NonEmpty | None = None
    """System message of prompts that begin with none, and no developer's; trained on, too."""
    engine: Engine = GenerateEngine()
    """Which program samples."""
    mismatch_limit: Positive = 0.1
    """A round warns where sampler and training differ by more nats (root mean square) on the tokens that were drawn;
    not of a round that source.overlap has sampled with older weights: there the difference is logged as staleness.
    Samplers tell them at temperature 1, so that where training.temperature is another nothing is compared."""


class _Reward(Section):
    weight: Finite = 1.0
    """The score is the weighted sum over rewards."""


class MathReward(_Reward):
    """1 if the answer's value is that of the reference (math-verify), else 0.

    Units that are written as text are left out: 5 cm is as good as 5 m.
    """

    kind: Literal["math"] = "math"
    answer: NonEmpty = "answer"
    """Column of the reference: an answer, or a solution whose last box holds it, or the text behind its last `####`."""


class NumberReward(_Reward):
    """1 if the completion's number, behind its last `####` or else the last one, is that of the reference, else 0."""

    kind: Literal["number"] = "number"
    answer: NonEmpty = "answer"
    """Column of the reference: a number, or a solution that ends with one (`#### 18`)."""


class FormatReward(_Reward):
    """1 if the whole completion matches a pattern, else 0."""

    kind: Literal["format"] = "format"
    pattern: NonEmpty = r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>"
    """Regular expression; a dot matches line ends too."""


class TagCountReward(_Reward):
    """The share of four tags of Open-R1's format that occur exactly once, with their line ends."""

    kind: Literal["tag_count"] = "tag_count"


class ModelReward(_Reward):
    """The score of a reward model, which reads the conversation through its own template."""

    kind: Literal["model"] = "model"
    model: NonEmpty
    """Folder, or hub: and a name; a sequence classifier with one output, or ArmoRM."""
    head: Literal["classifier", "armorm"] = "classifier"
    """What turns hidden states into a score: the model's own head, or ArmoRM's gated mixture of 19 rewards."""
    max_length: PositiveInt = 4096
    """Tokens of a conversation; longer ones get no score, but a status."""
    batch_size: PositiveInt = 16
    """Conversations a forward pass."""
    precision: Literal["float32", "bf16"] = "bf16"
    """What it is kept and computed in."""
    between_rounds: Literal["device", "host"] = "device"
    """Where it waits while the policy trains; host memory leaves the device to the policy, for a copy either way."""

    _revision: str | None = PrivateAttr(default=None)

    @property
    def revision(self) -> str | None:
        """Return the commit at which a model on the hub is loaded, or a digest of a folder; None outside of a run."""
        return self._revision

    def settle(self, revision: str) -> None:
        """Note the commit or the digest that a run scores with from now on."""
        self._revision = revision


class FunctionReward(OwnCodeSection, _Reward):
    """The number that a Python callable returns: ours, `call(prompt, completion, **columns)`, or one of TRL's form."""

    kind: Literal["function"] = "function"
    call: Call
    """`module:function`; it runs in worker processes, and what it prints goes nowhere."""
    columns: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Columns of the prompts that it is given, by keyword; default in TRL's form: all that it takes."""
    signature: Literal["ours", "trl"] | None = None
    """Its form: ours takes one answer and returns a number; trl takes keyword lists (prompts, completions,
    completion_ids, columns) of one entry each and returns a list of a number, or None where it scores nothing; default:
    as the names of its parameters tell."""

    _source: str | None = PrivateAttr(default=None)

    @property
    def source(self) -> str | None:
        """Return a digest of the files that the function was made of when a run began; None outside of one."""
        return self._source

    def settle(self) -> None:
        """Note what files the function is made of: a run scores with one text of them."""
        self._source = one_digest(digests_of(self.call, self.beside)) or None


Reward = Annotated[
    MathReward | NumberReward | FormatReward | TagCountReward | ModelReward | FunctionReward,
    Field(discriminator="kind"),
]
EnvironmentName = Annotated[str, Field(pattern=r"^[^=\x00]+$")]


class EnvironmentConfig(Section):
    """Environment variables that worker processes get; default: all but those that look like secrets."""

    keep: Annotated[tuple[EnvironmentName, ...], Field(strict=False)] = ()
    """Names of variables that they get though they look like secrets, such as a key that a function reward needs."""
    drop: Annotated[tuple[EnvironmentName, ...], Field(strict=False)] = ()
    """Names of variables that they do not get, whatever these look like."""

    @model_validator(mode="after")
    def _one_of_both(self) -> EnvironmentConfig:
        both = sorted({*self.keep} & {*self.drop})
        if both:
            raise ValueError(f"keep and drop both name {', '.join(both)}")
        return self


class ScoringConfig(Section):
    """How completions are scored: with a number, or a status that says why there is none, never a silent zero."""

    rewards: Annotated[tuple[Reward, ...], Field(strict=False, min_length=1)]
    """Their weighted sum is the score."""
    failed: Literal["error", "drop"] | Finite = "error"
    """What happens to a completion without a score: error ends the run, drop leaves it out, a number is its score in
    training; all are counted. Means of held-out scores, and of `humanline evaluate`, leave it out whatever is set."""
    failed_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A round of which a larger share has no score ends the run whatever `failed` says; 1 allows any number."""
    workers: Annotated[int, Field(ge=1, le=4096)] = 2
    """Worker processes for everything but reward models, of each process of the run."""
    seconds: Positive = 5.0
    """Seconds for each completion and reward; a worker that takes longer is killed."""
    first_seconds: Positive = 300.0
    """Seconds, in place of `seconds`, for a worker's first call of a function, which may import what it needs."""
    memory: Annotated[int, Field(ge=1, le=10**9)] = 1024
    """Memory that each worker may take, MiB."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """Environment variables that the workers get."""

    @model_validator(mode="after")
    def _some_weight(self) -> ScoringConfig:
        if not any(reward.weight for reward in self.rewards):
            raise ValueError("every weight in source.scoring.rewards is 0, so that all scores are equal")
        return self


class FixedSource(Section):
    """Train on the rows of data.train."""

    kind: Literal["fixed"] = "fixed"

    @model_validator(mode="before")
    @classmethod
    def _nothing_of_rounds(cls, given: Any) -> Any:
        names = given if isinstance(given, dict) else ()
        wrong = [name for name in names if name != "kind" and name in RoundsSource.model_fields]
        if wrong:
            raise ValueError(
                f"{', '.join(wrong)}: for kind: rounds alone; set that, or leave them out "
                '(source="{kind: fixed}" on the command line replaces the whole section)'
            )
        return given


class RoundsSource(Section):
    """Algorithm 1: sample from the policy, score, make pairs or groups, train on them, and again."""

    kind: Literal["rounds"] = "rounds"
    contexts_per_round: PositiveInt = 1024
    """Prompts a round; they are drawn without replacement, pass by pass over the prompts."""
    samples: Annotated[int, Field(ge=2, le=65536)] = 8
    """Completions a prompt."""
    count: PositiveInt | None = None
    """Rounds of the run; give these, training.steps or training.epochs."""
    steps: PositiveInt | None = None
    """Optimizer steps a round; default: one pass over what the round has made."""
    select: Literal["best_worst", "all"] | None = None
    """What is kept of a prompt's completions; default: all for grpo, the best against the worst for the others."""
    score_margin: NonNegative = 0.01
    """best_worst: the least difference of their scores (tau); prompts below it are left out and counted."""
    truncated: Literal["keep", "drop"] = "keep"
    """What happens to completions that ran into their length limit."""
    too_few: Literal["error", "skip"] = "error"
    """What happens to a round that leaves too little for a batch."""
    overlap: bool = False
    """Sample and score the next round in a second process while this one trains: its data are one round stale."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    scoring: ScoringConfig
    """How completions are scored."""

    @model_validator(mode="after")
    def _learn_secrets(self) -> RoundsSource:
        if self.sampling.engine.kind == "server":
            learn({"engine": self.sampling.engine.model_dump(mode="json")})
        return self

    @model_validator(mode="after")
    def _scores_differ(self) -> RoundsSource:
        if self.sampling.temperature == 0:
            raise ValueError(
                "source.sampling.temperature: 0 makes all completions of a prompt the same, and their scores equal"
            )
        return self

    @model_validator(mode="after")
    def _sampled_meanwhile(self) -> RoundsSource:
        engine = self.sampling.engine
        if self.overlap and engine.kind == "server" and engine.sleeps:
            raise ValueError(
                "source.overlap with a server that sleeps while the run trains: the next round could not be sampled "
                "meanwhile; leave out source.sampling.engine.new_weights.sleep, or source.overlap"
            )
        return self


Source = Annotated[FixedSource | RoundsSource, Field(discriminator="kind")]


def columns_of(reward: Reward) -> tuple[str, ...]:
    """Return the columns that a reward reads."""
    if isinstance(reward, MathReward | NumberReward):
        return (reward.answer,)
    return reward.columns if isinstance(reward, FunctionReward) else ()
