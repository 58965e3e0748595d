"""A slow second opinion on a whole training run: the model's own logits, a copied reference, plain loops.

It takes from humanline only what a batch holds (token ids, scores, labels, draws); it shares no loss, no transform, no
normalisation, no schedule and no optimizer step with what it checks.
"""

from __future__ import annotations

import copy
import math

import torch
from transformers import AutoModelForCausalLM


def signed(good):
    return 1.0 if good else -1.0


# What a pair costs, from the sums of its answers' log-ratios and the settings.
PAIRS = {
    "dpo": lambda chosen, rejected, given: sum(
        share * torch.log1p(torch.exp(-sign * given["beta"] * (chosen - rejected)))
        for sign, share in ((1, 1 - given.get("label_smoothing", 0)), (-1, given.get("label_smoothing", 0)))
    ),
    "ipo": lambda chosen, rejected, given: (chosen - rejected - 1 / (2 * given["beta"])) ** 2,
    "apo_zero": lambda chosen, rejected, given: (
        1 - torch.sigmoid(given["beta"] * chosen) + torch.sigmoid(given["beta"] * rejected)
    ),
    "apo_down": lambda chosen, rejected, given: (
        torch.sigmoid(given["beta"] * chosen) + 1 - torch.sigmoid(given["beta"] * (chosen - rejected))
    ),
}
# What a labelled answer costs, from the sum of its log-ratios, the reference point, the label and the settings.
LABELLED = {
    "kto": lambda z, point, good, given: (
        (1.1 if good else 0.7) * (1 - torch.sigmoid(signed(good) * given["beta"] * (z - point)))
    ),
    "bco": lambda z, point, good, given: torch.log1p(torch.exp(-signed(good) * given["beta"] * (z - point))),
}
# The reference point, from the sums of mismatched pairs and of the answers themselves.
POINTS = {
    "kto": lambda mismatched, own: max(0.0, sum(mismatched) / len(mismatched)),
    "bco": lambda mismatched, own: sum(own) / len(own),
}


def answer_logprobs(model, ids, prompt_length):
    """Log-probabilities of the answer's tokens, float64, from the model's own logits."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[1:, None]).squeeze(1)[prompt_length - 1 :]


def run(path, batches, objective, *, transform, k, steps, lr, warmup, baseline="reference", local=False):
    """Train for some steps; return the losses and the model.

    `batches[s]` is a list of micro-batches, each a list of units: dicts with `sequences` [(ids, prompt_length)],
    `desirable`, `advantages`, `mismatched` (ids, prompt_length), `kept` (a verdict's inputs). `transform` maps (raw
    log-ratio, kept) to the transformed one.
    """
    model = AutoModelForCausalLM.from_pretrained(path)
    reference, start = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(steps):
        units = [unit for micro in batches[step] for unit in micro]

        def raw(sequence, against=reference):
            with torch.no_grad():
                fixed = answer_logprobs(against, *sequence)
            return answer_logprobs(model, *sequence) - fixed

        def ratios(unit):
            untouched = map(raw, unit["sequences"])
            return [(one, transform(one, kept)) for one, kept in zip(untouched, unit["kept"], strict=True)]

        kind = objective["kind"]
        if kind in PAIRS:
            loss = sum(PAIRS[kind](a.sum(), b.sum(), objective) for (_, a), (_, b) in map(ratios, units)) / len(units)
        elif kind in LABELLED:
            z = [ratios(unit)[0][1].sum() for unit in units]
            with torch.no_grad():
                others = [float(transform(raw(u["mismatched"]), None).sum()) for u in units if u["mismatched"]]
            point = POINTS[kind](others, [float(one.detach()) for one in z])
            terms = [LABELLED[kind](one, point, u["desirable"], objective) for one, u in zip(z, units, strict=True)]
            loss = sum(terms) / len(units)
        else:
            terms = []
            for micro in batches[step]:
                own = []
                for unit in micro:
                    rows = zip(ratios(unit), unit["advantages"], unit["sequences"], strict=True)
                    for (untouched, ratio), a, sequence in rows:
                        r, eps = torch.exp(ratio), objective["clip_eps"]
                        surrogate = torch.minimum(r * a, torch.clamp(r, 1 - eps, 1 + eps) * a)
                        d = -(untouched if baseline == "reference" else raw(sequence, start))
                        own.append(surrogate - objective["kl_coef"] * (torch.exp(d) - d - 1))
                terms.append(torch.cat(own))
            loss = -sum(t.mean() for t in terms) / len(terms) if local else -torch.cat(terms).mean()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step % k == 0:
            reference.load_state_dict(copy.deepcopy(model.state_dict()))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / (warmup + 1))
        optimizer.step()
    assert all(map(math.isfinite, losses))
    return losses, model
