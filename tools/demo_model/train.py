"""Training: AdamW on the endless corpus, with checkpoints that the export reads."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from tqdm import tqdm

from tools.demo_model.batches import collect, lesson, lessons
from tools.demo_model.corpus import STAGES, Corpus, Document
from tools.demo_model.model import Batch, DemoModel, Shape
from tools.demo_model.vocabulary import Vocabulary
from tools.demo_model.vocabulary import train as train_vocabulary


@dataclass(frozen=True)
class Plan:
    """How long and how fast to learn. One step is one update on about `tokens` tokens."""

    steps: int = 5800
    decay_steps: int = 3600
    prompt_steps: int = 1000
    tokens: int = 1024
    rate: float = 2.5e-3
    vocabulary: int = 2048
    seed: int = 20261201
    longest: int = 640
    warmup: int = 100
    prompt_weight: float = 0.25
    balance: float = 0.01
    vocabulary_documents: int = 20_000
    report_every: int = 250


@dataclass
class Trained:
    """What a checkpoint holds."""

    model: DemoModel
    vocabulary: Vocabulary
    step: int
    lessons: int  # How many were drawn from the corpus so far.
    optimiser: dict[str, Any]


def save(path: Path, trained: Trained) -> None:
    """Write a checkpoint beside its final name first, so that a reader never meets half a file."""
    partial = path.with_suffix(".partial")
    content = {
        "shape": asdict(trained.model.shape),
        "merges": trained.vocabulary.merges,
        "state": trained.model.state_dict(),
        "step": trained.step,
        "lessons": trained.lessons,
        "optimiser": trained.optimiser,
    }
    torch.save(content, partial)
    partial.replace(path)


def load(path: Path) -> Trained:
    """Read a checkpoint."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    model = DemoModel(Shape(**content["shape"]))
    model.load_state_dict(content["state"])
    vocabulary = Vocabulary([(left, right) for left, right in content["merges"]])
    return Trained(model, vocabulary, content["step"], content["lessons"], content["optimiser"])


def rate_at(step: int, plan: Plan) -> float:
    """Linear warm-up, a steady stretch, then a linear fall to nothing."""
    return plan.rate * min(1.0, (step + 1) / plan.warmup, (plan.steps - step) / plan.decay_steps)


def prompt_weight_at(step: int, plan: Plan) -> float:
    """How much tokens that others write count: at first all text teaches, later (and faster) the answers alone."""
    return plan.prompt_weight * max(0.0, 1 - step / plan.prompt_steps)


def loss_of(model: DemoModel, batch: Batch, balance: float) -> torch.Tensor:
    """Weighted cross-entropy a prediction, and the routers' share."""
    logits, routing = model(batch)
    losses = functional.cross_entropy(logits, batch.targets, reduction="none")
    return (losses * batch.weights).sum() / batch.weights.sum() + balance * routing


@torch.no_grad()
def whole_answers(model: DemoModel, vocabulary: Vocabulary, documents: list[Document]) -> dict[str, float]:
    """Share of documents, a kind, in which every token of the assistant is the model's first choice."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for document in documents:
        batch = collect(iter([lesson(document, vocabulary)]), 1, 0.0)
        best = model(batch)[0].argmax(dim=-1)
        asked[document.kind] += 1
        right[document.kind] += int(bool((best == batch.targets).all()))
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


def _fresh(plan: Plan) -> Trained:
    """A new vocabulary, learned from a corpus of another seed than the lessons, and random weights."""
    sample = islice(Corpus(plan.seed + 1, [(None, STAGES[0][1])]), plan.vocabulary_documents)
    vocabulary = train_vocabulary((document.prompt + document.target for document in sample), plan.vocabulary)
    torch.manual_seed(plan.seed)
    return Trained(DemoModel(Shape(vocabulary=len(vocabulary.tokens))), vocabulary, 0, 0, {})


def run(plan: Plan, checkpoint: Path, *, resume: bool = False) -> Trained:
    """Train, from nothing or from the checkpoint, and keep the newest state in that file.

    A resumed run draws the lessons that an uninterrupted one would.
    """
    trained = load(checkpoint) if resume else _fresh(plan)
    model, vocabulary = trained.model, trained.vocabulary
    decayed = [p for p in model.parameters() if p.dim() > 1]
    free = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": free, "weight_decay": 0.0}],
        lr=plan.rate, betas=(0.9, 0.98), eps=1e-9, fused=True,
    )  # fmt: skip
    if trained.optimiser:
        optimiser.load_state_dict(trained.optimiser)
    source = lessons(iter(Corpus(plan.seed)), vocabulary, plan.longest)
    source = islice(source, trained.lessons, None)
    checked = list(islice(Corpus(plan.seed + 2), 240))
    smoothed = 0.0
    seen = 0
    first = trained.step
    started = time.monotonic()
    progress = tqdm(range(first, plan.steps), desc="training", unit="step", mininterval=5)
    for step in progress:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, plan)
        batch = collect(source, plan.tokens, prompt_weight_at(step, plan))
        loss = loss_of(model, batch, plan.balance)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seen += len(batch.ids)
        smoothed = loss.item() if step == first else 0.98 * smoothed + 0.02 * loss.item()
        if (step + 1) % 10 == 0:
            progress.set_postfix_str(f"loss {smoothed:.4f}", refresh=False)
        trained.step = step + 1
        trained.lessons += sum(int(group.shape[0]) for group in batch.groups)
        if (step + 1) % plan.report_every == 0 or step + 1 == plan.steps:
            trained.optimiser = optimiser.state_dict()
            save(checkpoint, trained)
            shares = whole_answers(model, vocabulary, checked)
            words = ", ".join(f"{kind} {share:.2f}" for kind, share in shares.items())
            speed = seen / (time.monotonic() - started)
            progress.write(f"step {step + 1}: {seen} tokens, {speed:.0f} a second, loss {smoothed:.4f}; right: {words}")
    return trained
