"""Best-first order of a row, ties included, as llama.cpp's calls of the C++ standard library leave it.

Equal logits are rare in a real row and common in a masked or constructed one. The C++ sorts are not stable, so which of
two equal ids comes first, and so which one a draw or a cut at k takes, is a matter of the algorithm. This module has
the algorithms that decide it: libstdc++'s ``partial_sort`` (heap select, heap sort) and ``sort`` (introsort), and the
bucket sort that llama.cpp puts before them for more than 128 entries
(``llama_token_data_array_partial_sort`` in ``src/llama-sampler.cpp``). Where no two of the asked entries are equal the
order is unique and NumPy finds it.

Every function takes a row ``values`` (float32 ``[n]``, no NaN) and returns positions in it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatRow = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]
Entry = tuple[float, int]
"""A value and its position. The C++ comparison looks at the value alone."""

HEAP_LIMIT = 128
"""Up to this many entries llama.cpp asks ``partial_sort`` for, beyond it the buckets."""
_BUCKETS = 128
_BUCKET_SCALE = np.float32(6.4)  # 128 buckets over logits from -10 to 10.
_BUCKET_ORIGIN = np.float32(64)
_INTROSORT_LEAF = 16
_STRETCH = 128


def best_first(values: FloatRow, k: int) -> Positions:
    """The k best entries, best first, as ``llama_token_data_array_partial_sort_inplace`` leaves them; 1 <= k <= n."""
    if k > HEAP_LIMIT:
        return bucket_best_first(values, k, k)
    unique = _unique_order(values, k)
    return partial_sort(values, k)[:k] if unique is None else unique


def bucket_best_first(values: FloatRow, k: int, wanted: int) -> Positions:
    """The first ``wanted`` of the k best entries as the buckets order them; 1 <= wanted <= k <= n."""
    unique = _unique_order(values, wanted)
    return bucket_sort(values, k, wanted) if unique is None else unique


def sort_best_first(values: FloatRow, wanted: int) -> Positions:
    """The first ``wanted`` of all n positions as ``std::sort`` leaves them; 0 <= wanted <= n."""
    unique = _unique_order(values, wanted)
    return introsort(values)[:wanted] if unique is None else unique


def _unique_order(values: FloatRow, k: int) -> Positions | None:
    """The k best in order, or None where a tie among them, or at the cut after them, leaves the order open."""
    # One entry past the cut shows whether the last one kept has an equal that is not.
    contenders = _contenders(values, k + 1)
    order = contenders[np.argsort(-values[contenders])[: k + 1]]
    ranked = values[order]
    if np.any(ranked[1:] == ranked[:-1]):
        return None
    return order[:k]


def _contenders(values: FloatRow, count: int) -> Positions:
    """A few positions that have the ``count`` best entries among them.

    The row is cut into stretches. ``count`` of them have a best entry that reaches the ``count``-th of those, so
    what does not reach it is not among the best. Much faster than a partition of a long row.
    """
    whole = len(values) // _STRETCH
    if whole <= count:
        return np.arange(len(values))
    best = values[: whole * _STRETCH].reshape(whole, _STRETCH).max(axis=1)
    return np.flatnonzero(values >= np.partition(best, whole - count)[whole - count])


def partial_sort(values: FloatRow, k: int) -> Positions:
    """``std::partial_sort``: all n positions, the k best sorted in front, the rest as the heap pushed them about.

    The k first entries become a heap with the worst at its root; each later entry better than the root takes its
    place, and the root goes where that entry was. The heap is then emptied worst first.
    """
    n = len(values)
    if k == n and (unique := _unique_order(values, n)) is not None:
        return unique
    order = np.arange(n)
    heap: list[Entry] = list(zip(values[:k].tolist(), range(k), strict=True))
    for root in range((k - 2) // 2, -1, -1):
        _sift(heap, root, k, heap[root])
    start, length = k, max(k, 64)
    while start < n:
        # The root only rises, so what does not beat the root at the start of a stretch never enters in that stretch.
        stop = min(start + length, n)
        for position in (start + np.flatnonzero(values[start:stop] > heap[0][0])).tolist():
            value = float(values[position])
            if value > heap[0][0]:
                order[position] = heap[0][1]
                _sift(heap, 0, k, (value, position))
        start, length = stop, length * 2
    for last in range(k - 1, 0, -1):
        entry = heap[last]
        heap[last] = heap[0]
        _sift(heap, 0, last, entry)
    order[:k] = [position for _, position in heap]
    return order


def _sift(heap: list[Entry], hole: int, length: int, entry: Entry) -> None:
    """libstdc++'s ``__adjust_heap``: let the hole sink to a leaf along the worse children, then lift ``entry`` there.

    Sinking first and lifting afterwards, rather than stopping where ``entry`` fits, is what fixes the order of ties.
    """
    top = hole
    child = hole
    while child < (length - 1) // 2:
        child = 2 * child + 2
        if heap[child][0] > heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if length % 2 == 0 and child == (length - 2) // 2:
        child = 2 * child + 1
        heap[hole] = heap[child]
        hole = child
    parent = (hole - 1) // 2
    while hole > top and heap[parent][0] > entry[0]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = entry


def bucket_sort(values: FloatRow, k: int, wanted: int) -> Positions:
    """llama.cpp's bucket sort: spread over 128 buckets in order, sort the best buckets and enough of the last.

    Gives the first ``wanted`` of its k positions, and leaves undone what only the others need. A logit above 3.3e8,
    which overflows llama.cpp's bucket number and is misplaced there, is in its right place here.
    """
    with np.errstate(over="ignore"):
        scaled = values * _BUCKET_SCALE + _BUCKET_ORIGIN
    buckets = np.clip(scaled, 0, _BUCKETS - 1).astype(np.intp)
    order = np.argsort(-buckets, kind="stable")
    ends = np.cumsum(np.bincount(_BUCKETS - 1 - buckets, minlength=_BUCKETS))
    start = 0
    for end in ends.tolist():
        bucket = order[start:end]
        if end >= k:
            order[start:end] = bucket[partial_sort(values[bucket], k - start)]
            break
        order[start:end] = bucket[introsort(values[bucket])]
        if end >= wanted:
            break
        start = end
    return order[:wanted]


def introsort(values: FloatRow) -> Positions:
    """``std::sort``: all n positions, best first.

    Quicksort down to stretches of 16, then one insertion sort, which is stable and therefore ends where any stable sort
    of the stretches does.
    """
    order = np.arange(len(values))
    moved = values.copy()
    if len(values) > 1:
        _quicksort(moved, order, 0, len(values), 2 * (len(values).bit_length() - 1))
    return order[np.argsort(-moved, kind="stable")]


def _quicksort(values: FloatRow, order: Positions, first: int, last: int, depth: int) -> None:
    """libstdc++'s ``__introsort_loop`` on the stretch ``first:last`` of both arrays, in place."""
    while last - first > _INTROSORT_LEAF:
        ranked = np.sort(values[first:last])
        if not np.any(ranked[1:] == ranked[:-1]):
            return  # No tie is left in the stretch, so the final sort alone determines it.
        if depth == 0:
            heaped = first + partial_sort(values[first:last], last - first)
            values[first:last], order[first:last] = values[heaped], order[heaped]
            return
        depth -= 1
        cut = _partition(values, order, first, last)
        _quicksort(values, order, cut, last, depth)
        last = cut


def _partition(values: FloatRow, order: Positions, first: int, last: int) -> int:
    """Move the pivot to ``first`` and part the rest around it; returns where the worse part starts."""
    pivot_at = _median(values, first + 1, first + (last - first) // 2, last - 1)
    _swap(values, order, np.array([first]), np.array([pivot_at]))
    pivot = values[first]
    stretch = values[first + 1 : last]
    # Two scans meet: from the left over entries that do not beat the pivot, from the right over those it does not
    # beat. The scans see untouched entries until they cross, so all their stops are known at once.
    left = first + 1 + np.flatnonzero(stretch <= pivot)
    right = (first + 1 + np.flatnonzero(stretch >= pivot))[::-1]
    pairs = min(len(left), len(right))
    swaps = int(np.count_nonzero(left[:pairs] < right[:pairs]))
    _swap(values, order, left[:swaps], right[:swaps])
    # The left scan ends at its next own stop or, if that lies behind it, at the entry last swapped to the right.
    ends = ([int(left[swaps])] if swaps < len(left) else []) + ([int(right[swaps - 1])] if swaps else [])
    return min(ends)


def _median(values: FloatRow, a: int, b: int, c: int) -> int:
    """Which of the three positions libstdc++ takes the pivot from."""
    if values[a] > values[b]:
        if values[b] > values[c]:
            return b
        return c if values[a] > values[c] else a
    if values[a] > values[c]:
        return a
    return c if values[b] > values[c] else b


def _swap(values: FloatRow, order: Positions, left: Positions, right: Positions) -> None:
    values[left], values[right] = values[right], values[left]
    order[left], order[right] = order[right], order[left]
