"""A request of any API, once it is read: what to generate from, how to sample, when to stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from bloomery.interface.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One answer to compute.

    endpoint: the request's path, for the request line.  prompt: the prompt's ids, at least one.  n_predict: the most
    ids to generate; -1 is no limit but the context.  stop: strings that end the generation and are not part of it.
    cache_prompt: whether a slot's common prefix may be reused.  id_slot: the slot asked for; -1 is any.
    n_probs: how many best probabilities come with each id.  post_sampling_probs: whether they are the sampler's, not
    the model's.  return_progress: whether PromptProgress events are wanted.
    preserved: special ids whose text belongs to the answer (think and tool-call tags) although they are control tokens.
    choice: the index among a request's several choices; None when it has one.
    """

    endpoint: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1
    stop: tuple[str, ...] = ()
    cache_prompt: bool = True
    id_slot: int = -1
    n_probs: int = 0
    post_sampling_probs: bool = False
    return_progress: bool = False
    preserved: frozenset[int] = frozenset()
    choice: int | None = None
