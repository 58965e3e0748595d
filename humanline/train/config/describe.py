"""A configuration, and the name of its variant, in words."""

from __future__ import annotations

from humanline.system.terminal import told
from humanline.train.config.rounds import RoundsSource, SamplingConfig, ScoringConfig
from humanline.train.config.run import AdapterConfig, TrainConfig

_VARIANTS = {
    ("none", "never"): "offline",
    ("none", "before_step"): "sync only (no transform)",
    ("none", "after_step"): "trust region",
    ("none", "each_round"): "round by round",
    ("clip", "never"): "clip only (no sync)",
    ("clip", "before_step"): "humanline",
    ("beta_rejection", "before_step"): "humanline sampling",
}
_SHARED = "each process with its share of weights, gradients and optimizer states"


def describe_config(config: TrainConfig) -> str:
    """Return a configuration in a few lines of words; needs no model, no data and no network."""
    return "\n".join(f"{name:<12} {told(text)}" for name, text in config_in_words(config).items())


def config_in_words(config: TrainConfig) -> dict[str, str]:
    """Return what a configuration says, in words, by what it is about: variant, transform, training, data, ..."""
    training, batch = config.training, config.training.batch_size
    length = f"{training.steps} steps" if training.steps else f"{training.epochs or 0:g} epoch(s)"
    if config.rounds is not None and config.rounds.count is not None:
        length = f"{config.rounds.count} rounds of at most {config.round_steps} steps"
    counted = f"{training.micro_batch_size}{'' if config.objective.grouping is None else ' rows'}"
    micro = "" if training.micro_batch_size is None else f", {counted} a pass and process"
    if training.micro_batch_tokens is not None:
        micro = f", {training.micro_batch_tokens:,} tokens a pass and process"
    how = f"{training.precision} compute"
    how += "" if training.temperature == 1 else f", logits divided by {training.temperature:g}"
    kept = [f"{config.kept_in} {'weights' if config.adapter is None else 'frozen weights'}"]
    kept += [_SHARED] if training.sharding == "full" else []
    kept += ["8-bit optimizer states"] if config.optimizer.states == "8bit" else []
    kept += ["shared out over the processes"] if training.sharding == "full" else []
    kept += ["activations computed again"] if training.activation_checkpointing else []
    kept += ["no padding"] if training.padding == "free" else []
    kept += ["log-probabilities by cut cross-entropy"] if training.logprobs != "chunked" else []
    kept += ["layers by the kernels of liger"] if training.layers != "plain" else []
    when = [f"every {config.checkpoint.every} steps"] if config.checkpoint.every else []
    when += [f"every {config.checkpoint.minutes:g} minutes"] if config.checkpoint.minutes else []
    lines = {"variant": describe_variant(config)}
    if config.objective.needs_reference:
        lines |= {"transform": describe_transform(config), "reference": describe_reference(config)}
    lines |= {
        "training": f"{length} of {batch} {units_in_words(config)}{micro}; {how}; "
        f"lr {config.optimizer.lr:g}, clipped at gradient norm {config.optimizer.max_grad_norm:g}; seed {config.seed}",
        "model": config.model,
        "memory": ", ".join(kept),
        "data": f"{config.data.train}, held out: {config.data.eval or 'none'}",
        "checkpoints": f"{' and '.join([*when, 'when stopped'])}; the last {config.checkpoint.keep} are kept",
        "output": config.output,
    }
    if config.rounds is not None:
        lines |= {"rounds": _describe_rounds(config, config.rounds)}
        lines |= {"sampling": _sampling(config.rounds.sampling), "scoring": _scoring(config.rounds.scoring)}
        asked = config.evaluation
        if config.data.eval is not None and (asked.samples > 1 or asked.sampling is not None):
            lines["looks"] = f"held-out answers: {asked.samples} a prompt, {_sampling(config.asking)}"
    distance = config.evaluation.distance
    if distance is not None:
        back = {"end": ", at the end both ways", "looks": ", both ways", "never": ""}[distance.to_start]
        lines["distance"] = (
            f"KL from the start at every look{back}; {distance.samples} answers a prompt to at most {distance.limit} "
            f"prompts of {distance.prompts or config.data.eval}, {_sampling(config.travelling)}"
        )
    if config.adapter is not None:
        lines["adapter"] = _adapter(config.adapter)
    if config.tracking.trackers:
        lines["trackers"] = ", ".join(config.tracking.trackers)
    return {name: str(text) for name, text in lines.items()}


def _describe_rounds(config: TrainConfig, rounds: RoundsSource) -> str:
    kept = "all of them" if config.keeps_groups else f"best against worst, at least {rounds.score_margin:g} apart"
    length = f"{rounds.steps} steps each" if rounds.steps else "one pass over what they make"
    what = f"{rounds.contexts_per_round} prompts, {rounds.samples} completions each, of which {kept}; {length}"
    how = "made equal to the policy" if config.reference.round_start == "sync" else "kept"
    if config.reference.schedule.kind in ("before_step", "after_step"):
        what += f"; at each start the reference is {how}"
    return what + ("; the next one sampled meanwhile, one round stale" if rounds.overlap else "")


def _sampling(sampling: SamplingConfig) -> str:
    engine = sampling.engine
    where = f"server {engine.url}, new weights by {engine.new_weights.kind}" if engine.kind == "server" else engine.kind
    top_p = "" if sampling.top_p == 1 else f", top-p {sampling.top_p:g}"
    stops = f", stops at {', '.join(map(repr, sampling.stop))}" if sampling.stop else ""
    return f"temperature {sampling.temperature:g}{top_p}, at most {sampling.max_tokens} tokens{stops}; by {where}"


def _scoring(scoring: ScoringConfig) -> str:
    names = {"model": "model", "function": "call"}
    parts = [
        f"{reward.weight:g} x {reward.kind}"
        + (f" {getattr(reward, names[reward.kind])}" if reward.kind in names else "")
        for reward in scoring.rewards
    ]
    failed = {"error": "ends the run", "drop": "is left out"}.get(str(scoring.failed), f"counts as {scoring.failed}")
    return f"{' + '.join(parts)}; a completion without a score {failed}"


def _adapter(adapter: AdapterConfig) -> str:
    where = "all linear layers and experts but the head" if adapter.targets is None else ", ".join(adapter.targets)
    dropped = f", dropout {adapter.dropout:g}" if adapter.dropout else ""
    return f"LoRA of rank {adapter.rank}, alpha {adapter.alpha:g}{dropped}, on {where}"


def describe_variant(config: TrainConfig) -> str:
    """Return the name of the variant, as in the paper: "humanline DPO", "offline KTO"."""
    if not config.objective.needs_reference:
        return "next-token training (no reference)"
    kinds = config.transform.kind, config.reference.schedule.kind
    name = _VARIANTS.get(kinds, f"{kinds[0]} with {kinds[1]}")
    if config.rounds is not None:
        name = "online" if kinds == ("none", "each_round") else f"online, {name}"
    return f"{config.objective.title}, {name}"


def describe_transform(config: TrainConfig) -> str:
    """Return what happens to log-ratios, in words."""
    transform = config.transform
    if transform.kind == "clip":
        return f"token log-ratios clipped to [{transform.log_eps_low:g}, {transform.log_eps_high:g}] nats"
    if transform.kind == "beta_rejection":
        bounds = f"{transform.policy_ratio_bound} and {transform.ref_ratio_bound}"
        return f"tokens detached by Beta rejection (rule: {transform.rule}; ratio bounds {bounds})"
    return "none: log-ratios as they are"


def describe_reference(config: TrainConfig) -> str:
    """Return which earlier policy is the reference, and how it is had, in words."""
    schedule = config.reference.schedule
    if schedule.kind == "never":
        what = "the initial policy throughout"
    elif schedule.kind == "before_step":
        what = f"the policy as it was before an update, synced every {schedule.every} step(s)"
    elif schedule.kind == "after_step":
        what = f"the policy as it was after every {schedule.every} step(s)"
    else:
        what = f"the policy at the start of each round of {schedule.round_steps or config.round_steps} steps"
    how = "a second model in memory" if config.reference.storage == "model" else "scored ahead, no second model"
    if config.reference.storage != "model" and config.adapter is not None and schedule.kind == "never":
        how = "the base with its adapter switched off, no second model"
    anchor = "; KL against the initial policy" if config.reference.baseline == "initial" else ""
    return f"{what}; {how}{anchor}"


def units_in_words(config: TrainConfig) -> str:
    """Return the units that a batch counts, in words: examples, pairs or groups of answers."""
    return config.objective.units + ("" if config.objective.grouping is None else " of answers")
