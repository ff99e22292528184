"""The threads that share the products of matrices.

The BLAS itself runs on one thread: it may split a long dot product over several, and then their number would show in
the sum. Here whole dot products are handed out, each the same whoever computes it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import threadpoolctl

_Item = TypeVar("_Item")

# Below so many weights a product is done before a second thread has woken up, and on a busy machine threads that wait
# for each other cost many times what they save.
SMALL_MODEL = 50_000_000


@dataclass
class _Setting:
    """This process's number of threads."""

    threads: int = 1


_setting = _Setting()


def use_threads(asked: int | None, n_weights: int) -> int:
    """Set this process's number of threads for products, and return it.

    `asked`, or by the model's size: 1 for a small one, else what the BLAS would use by itself, which is the machine's
    cores unless the environment (OMP_NUM_THREADS) says otherwise. The number changes the time and no bit.
    """
    own = _threads_of_the_blas()
    _setting.threads = asked or (1 if n_weights < SMALL_MODEL else own)
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")
    return _setting.threads


def share_out(act: Callable[[_Item], None], items: Iterable[_Item], *, alone: bool = False) -> None:
    """Call `act` with every item, on this thread and, unless `alone`, on the others as they become free.

    Items are asked for one at a time, by whichever thread is next. An exception of any call is raised here.
    """
    n_others = 0 if alone else _setting.threads - 1
    if not n_others:
        for item in items:
            act(item)
        return
    in_turn = _InTurn(items)

    def work() -> None:
        for item in in_turn:
            act(item)

    others = [_pool(n_others).submit(work) for _ in range(n_others)]
    try:
        work()
    finally:
        for other in others:
            # One that has not begun would find nothing left to do.
            if not other.cancel():
                other.result()


class _InTurn(Generic[_Item]):
    """An iterator that several threads may ask."""

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        with self._lock:
            return next(self._items)


@functools.cache
def _pool(n: int) -> ThreadPoolExecutor:
    """`n` threads, kept: waking one is cheaper than starting it, and one that waits costs nothing."""
    return ThreadPoolExecutor(n, thread_name_prefix="product")


@functools.cache
def _threads_of_the_blas() -> int:
    """What the BLAS would use, as it was before `use_threads` limited it."""
    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return max(pools, default=1)
