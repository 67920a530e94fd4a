"""Ranks against one process."""

from pathlib import Path

import pytest

from aureole.errors import InvalidInputError
from aureole.records import Record, write_record
from aureole_paper.ranks import FIGURES, compare_ranks

ROOT = Path(__file__).parents[2]


def write(folder, ranks, values):
    for seed, value in values.items():
        settings = {"ranks": ranks} if ranks > 1 else {}
        record = Record("a", dict.fromkeys(FIGURES, value), "demo", seed, settings)
        write_record(record, folder / f"seed-{seed}.json")
    return folder


def test_the_same_seeds_are_compared(tmp_path):
    one = write(tmp_path / "one", 1, {4: 1.0, 5: 3.0, 6: 5.0, 9: 100.0})
    two = write(tmp_path / "two", 2, {4: 1.5, 5: 3.5, 6: 5.5})
    found = compare_ranks(one, two)[0]
    assert found.seeds == (4, 5, 6)
    assert found.ranks == 2
    assert found.one == pytest.approx((3.0, 2 / 3**0.5))
    assert found.difference == pytest.approx((0.5, 0.0))
    assert found.errors_apart == pytest.approx(0.5 / (2 * 4 / 3) ** 0.5)
    with pytest.raises(InvalidInputError, match="have 1 seeds in common"):
        compare_ranks(one, write(tmp_path / "few", 2, {4: 1.0}))


def test_two_ranks_train_the_ambiguous_experiment_as_one_does():
    """The records in the repository: five seeds, every figure within two standard errors."""
    found = compare_ranks(
        ROOT / "paper/results/controlled/ambiguous", ROOT / "results/scale/ranks/ambiguous"
    )
    assert len(found) == 4
    for figure in found:
        assert figure.seeds == (4, 5, 6, 7, 8)
        assert figure.ranks == 2
        assert figure.errors_apart < 2, figure.figure
