"""From a request's options to the generations that answer it."""

from __future__ import annotations

import dataclasses

from bloomery.interface.sampling import SamplingParams
from bloomery.server.fields import Options
from bloomery.server.generation import Generation


def generations(
    options: Options, prompt: tuple[int, ...], endpoint: str, preserved: frozenset[int] = frozenset()
) -> list[Generation]:
    """One generation a choice.

    Choice i draws with the request's seed plus i, so choice 0 is the answer of a request for one, and a seeded request
    repeats. `preserved` are the special ids whose text belongs to the answer.
    """
    return [
        Generation(
            endpoint=endpoint,
            prompt=prompt,
            sampling=_sampling(options, choice),
            n_predict=options.n_predict,
            stop=options.stop,
            cache_prompt=options.cache_prompt,
            id_slot=options.id_slot,
            n_probs=options.n_probs,
            post_sampling_probs=options.post_sampling_probs,
            # Timings in a running stream are made of the prompt's progress.
            return_progress=options.stream and (options.return_progress or options.timings_per_token),
            preserved=preserved,
            choice=choice if options.n > 1 else None,
        )
        for choice in range(options.n)
    ]


def _sampling(options: Options, choice: int) -> SamplingParams:
    sampling = options.sampling
    if choice == 0 or sampling.seed is None or sampling.has_random_seed:
        return sampling
    return dataclasses.replace(sampling, seed=sampling.seed + choice)
