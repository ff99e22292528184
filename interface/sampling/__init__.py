"""llama-server's sampler, exactly: its chain, its numbers, its order of ties and its random draws.

A request's :class:`SamplingParams` make a :class:`Sampler` for each sequence; :func:`probabilities` reports what the
model itself thought of an id, before any of it, and :class:`Drawn` what the sampler drew it from.
"""

from bloomery.interface.sampling.drawn import Drawn, TokenProbability
from bloomery.interface.sampling.params import SamplingParams
from bloomery.interface.sampling.probabilities import TokenLogprob, TokenLogprobs, probabilities
from bloomery.interface.sampling.sampler import Sampler, random_seed

__all__ = [
    "Drawn",
    "Sampler",
    "SamplingParams",
    "TokenLogprob",
    "TokenLogprobs",
    "TokenProbability",
    "probabilities",
    "random_seed",
]
