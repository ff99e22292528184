"""How many threads the products of matrices run on."""

from __future__ import annotations

import threadpoolctl

# Below so many weights a product is done before a second thread has woken up, and on a busy machine threads that wait
# for each other cost many times what they save.
SMALL_MODEL = 50_000_000


def use_threads(asked: int | None, n_weights: int) -> int:
    """Set the BLAS's number of threads for this process, and return it.

    `asked`, or by the model's size: 1 for a small one, else what the BLAS would use by itself, which is the machine's
    cores unless the environment (OMP_NUM_THREADS) says otherwise. The number changes the time and no bit: a BLAS splits
    a product's rows and columns over threads, never its sums.
    """
    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    own = max(pools, default=1)
    chosen = asked or (1 if n_weights < SMALL_MODEL else own)
    threadpoolctl.threadpool_limits(limits=chosen, user_api="blas")
    return chosen
