"""ArmoRM: 19 rewards of a conversation, mixed by a gate that reads the prompt; our own code for its published weights.

    score = sum_k gate_k(h_prompt) * (R h_last T)_k,   gate = softmax(MLP(h_prompt) / temperature) * scale

h are last hidden states of a Llama: h_last at the conversation's last token, h_prompt at the token that ends the
user's last turn. R is (19, H), T is (19, 19).
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from humanline.system.imports import quiet

with quiet():
    from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel

# The end of the user's turn and the opening of the answer; the gate reads the first of these tokens. The two line ends
# that follow are left out: what they are as tokens depends on the answer.
PROMPT_END = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>"


class _Gate(nn.Module):
    """The network that weighs the rewards; its parts are named as in the weight files."""

    def __init__(self, config: Any, objectives: int) -> None:
        super().__init__()
        hidden = getattr(config, "gating_hidden_dim", 1024)
        sizes = [config.hidden_size] + [hidden] * getattr(config, "gating_n_hidden", 3)
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.layers = nn.ModuleList([*layers, nn.Linear(sizes[-1], objectives)])
        self.logit_scale = nn.Parameter(torch.ones(1))
        self.temperature = float(getattr(config, "gating_temperature", 10))

    def forward(self, prompt: Tensor) -> Tensor:
        """Return the weights of the rewards, shape (B, 19), from hidden states of shape (B, H)."""
        for layer in self.layers[:-1]:
            prompt = torch.relu(layer(prompt))
        return torch.softmax(self.layers[-1](prompt) / self.temperature, dim=-1) * self.logit_scale


class ArmoRM(LlamaPreTrainedModel):  # type: ignore[misc]
    """A Llama with ArmoRM's head, which is computed in float32."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        objectives = getattr(config, "num_objectives", 19)
        self.model = LlamaModel(config)
        self.regression_layer = nn.Linear(config.hidden_size, objectives, bias=False)
        self.gating = _Gate(config, objectives)
        self.reward_transform_matrix = nn.Parameter(torch.eye(objectives), requires_grad=False)
        self.post_init()

    def scores(self, input_ids: Tensor, attention_mask: Tensor, prompt_ends: Tensor) -> Tensor:
        """Return the scores, float32 of shape (B,).

        Parameters
        ----------
        input_ids, attention_mask : Tensor, shape (B, T)
            Padded on the right.
        prompt_ends : Tensor, shape (B,)
            Where the token stands that ends the user's last turn.
        """
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        rows = torch.arange(len(hidden), device=hidden.device)
        rewards = self.regression_layer(hidden[rows, attention_mask.sum(1) - 1].float())
        gate = self.gating(hidden[rows, prompt_ends].float())
        scores: Tensor = (gate * (rewards @ self.reward_transform_matrix)).sum(-1)
        return scores

    def head_in_float32(self) -> ArmoRM:
        """Keep the head in float32: bf16 would round scores to about three digits."""
        self.regression_layer.float()
        self.gating.float()
        self.reward_transform_matrix.data = self.reward_transform_matrix.data.float()
        return self
