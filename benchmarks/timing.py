"""Medians of interleaved runs, so that noise of the machine affects every contender equally."""

import time
from collections.abc import Callable
from statistics import median

__all__ = ["median_seconds"]


def median_seconds(
    contenders: dict[str, Callable[[], object]],
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median time of each contender over ``repeats`` rounds, after one warm-up round; wall time by default."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(repeats + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            if round_:
                times[name].append(clock() - start)
    return {name: median(values) for name, values in times.items()}
