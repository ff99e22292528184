"""The `qwen3moe` network in torch, for training only.

The equations are those the engines run (Qwen3 technical report, arXiv 2505.09388; llama.cpp, src/models/qwen3moe.cpp):
pre-norm blocks of grouped-query attention with an RMS norm on every query and key head before NeoX RoPE, then a
mixture of SwiGLU experts whose weights are the renormalised top of a softmax over all experts.

Documents of one batch lie end to end in one row of tokens, so that no matrix product spends time on padding; only
attention sees them as padded groups of similar length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of the network; every width that a K-quant row runs along is a multiple of 256."""

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 4
    key_value_heads: int = 2
    head_width: int = 64
    experts: int = 8
    experts_used: int = 2
    expert_width: int = 256
    context: int = 2048
    rope_base: float = 10_000.0
    epsilon: float = 1e-6


@dataclass(frozen=True)
class Batch:
    """Documents end to end.

    ids, positions: int64 (tokens,).
    groups: one index tensor (documents, longest) a group, into the row of tokens; `tokens` itself marks padding.
    rows: int64 (predictions,), the tokens whose prediction counts at all; targets: int64 (predictions,), what should
    follow each; weights: float32 (predictions,), how much it counts.
    """

    ids: Tensor
    positions: Tensor
    groups: list[Tensor]
    rows: Tensor
    targets: Tensor
    weights: Tensor


def _rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, epsilon)


class Attention(nn.Module):
    """Causal grouped-query attention within each document."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries = shape.heads * shape.head_width
        keys = shape.key_value_heads * shape.head_width
        self.q = nn.Linear(shape.width, queries, bias=False)
        self.k = nn.Linear(shape.width, keys, bias=False)
        self.v = nn.Linear(shape.width, keys, bias=False)
        self.output = nn.Linear(queries, shape.width, bias=False)
        self.q_norm = nn.Parameter(torch.ones(shape.head_width))
        self.k_norm = nn.Parameter(torch.ones(shape.head_width))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, groups: list[Tensor]) -> Tensor:
        """x: (tokens, width); cosine, sine: (tokens, 1, head_width / 2)."""
        shape, tokens = self.shape, x.shape[0]
        q = _rotate(_rms(self.q(x).view(tokens, shape.heads, -1), self.q_norm, shape.epsilon), cosine, sine)
        k = self.k(x).view(tokens, shape.key_value_heads, -1)
        k = _rotate(_rms(k, self.k_norm, shape.epsilon), cosine, sine)
        v = self.v(x).view(tokens, shape.key_value_heads, -1)
        repeats = shape.heads // shape.key_value_heads
        packed = torch.cat([q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)], dim=2)
        packed = functional.pad(packed, (0, 0, 0, 0, 0, 1))
        outputs = []
        for group in groups:
            documents, longest = group.shape
            padded = packed.index_select(0, group.flatten()).view(documents, longest, shape.heads, -1).transpose(1, 2)
            parts = padded.split(shape.head_width, dim=3)
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)
            present = (group.flatten() < tokens).nonzero().squeeze(1)
            outputs.append(mixed.reshape(documents * longest, -1).index_select(0, present))
        return self.output(torch.cat(outputs))


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """NeoX RoPE: dimension j turns with dimension j + half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Experts(nn.Module):
    """Routed SwiGLU experts: gate and up projections share one matrix an expert here and are parted at export."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(shape.experts, 2 * shape.expert_width, shape.width))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.width, shape.expert_width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mixture's output (tokens, width), and the load-balancing loss of Fedus et al. (arXiv 2101.03961)."""
        shape, tokens = self.shape, x.shape[0]
        probabilities = functional.softmax(self.router(x), dim=-1)
        top, chosen = probabilities.topk(shape.experts_used, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        chosen_flat = chosen.flatten()
        order = chosen_flat.argsort(stable=True)
        token = order // shape.experts_used
        loads = torch.bincount(chosen_flat, minlength=shape.experts)
        pieces = x.index_select(0, token).split(loads.tolist())
        results = []
        for piece, gate_up, down in zip(pieces, self.gate_up.unbind(), self.down.unbind(), strict=True):
            gate, up = functional.linear(piece, gate_up).chunk(2, dim=-1)
            results.append(functional.linear(functional.silu(gate) * up, down))
        weighted = torch.cat(results) * top.flatten().index_select(0, order).unsqueeze(1)
        output = torch.zeros(tokens, shape.width).index_add(0, token, weighted)
        share = loads.float() / (tokens * shape.experts_used)
        balance = shape.experts * (share * probabilities.mean(dim=0)).sum()
        return output, balance


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.epsilon = shape.epsilon
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.attention = Attention(shape)
        self.experts_norm = nn.Parameter(torch.ones(shape.width))
        self.experts = Experts(shape)

    def forward(
        self, h: Tensor, cosine: Tensor, sine: Tensor, groups: list[Tensor], rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """h: (tokens, width); gives the new h, of the given rows only, and the layer's load-balancing loss."""
        h = h + self.attention(_rms(h, self.attention_norm, self.epsilon), cosine, sine, groups)
        if rows is not None:
            h = h.index_select(0, rows)
        mixed, balance = self.experts(_rms(h, self.experts_norm, self.epsilon))
        return h + mixed, balance


class DemoModel(nn.Module):
    """The whole network. The head is the embedding itself: whatever copies a token copies every token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        half = shape.head_width // 2
        angles = torch.outer(
            torch.arange(shape.context, dtype=torch.float64),
            shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half),
        )
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Weights of variance 1 / inputs, a tenth as wide where a layer writes to the residual stream."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            writes = name.endswith(("attention.output.weight", "experts.down"))
            nn.init.normal_(parameter, std=(0.1 if writes else 1.0) * parameter.shape[-1] ** -0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (predictions, vocabulary) and the mean load-balancing loss of the layers."""
        cosine = self.cosine[batch.positions].unsqueeze(1)
        sine = self.sine[batch.positions].unsqueeze(1)
        h = self.embedding(batch.ids)
        balance = torch.zeros(())
        for number, block in enumerate(self.blocks, start=1):
            # Nothing after the last attention looks at other tokens.
            rows = batch.rows if number == self.shape.layers else None
            h, loss = block(h, cosine, sine, batch.groups, rows)
            balance = balance + loss / self.shape.layers
        h = _rms(h, self.norm, self.shape.epsilon)
        return functional.linear(h, self.embedding.weight), balance
