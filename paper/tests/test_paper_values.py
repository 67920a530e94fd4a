"""The paper's numbers."""

import pytest

from aureole_paper.paper_values import PAPER, format_paper, paper_value


@pytest.mark.parametrize(
    ("setting", "metric", "shown"),
    [
        ("ambiguous", "kappa_rank", "0.82 ± 0.04"),
        ("ambiguous-paper", "kappa_mae", "6.15 ± 0.61"),
        ("losses-mcinfonce", "kappa_mae", "6.15 ± 0.61"),
        ("losses-elk-paper-scale", "kappa_mae", "21.70 ± 0.31"),
        ("losses-hib", "kappa_mae", "1e14 ± 1e14"),
        ("injective-longer", "kappa_mean", "κ → ∞"),
        ("mc-samples-16", "kappa_mae", "4.55"),
        ("encoder-dim-32", "kappa_rank", "≥ 0.60"),
    ],
)
def test_values_are_printed_as_in_the_paper(setting, metric, shown):
    value = paper_value(setting, metric)
    assert value is not None
    assert format_paper(value) == shown


def test_there_is_no_number_where_the_paper_has_none():
    assert paper_value("base", "kappa_rank") is None
    assert paper_value("losses-infonce", "kappa_rank") is None
    assert paper_value("mc-samples-4", "kappa_mae") is None


def test_every_number_names_its_source():
    sources = {value.source for row in PAPER.values() for value in row.values()}
    assert all(source.startswith(("tab:", "fig:", "section")) for source in sources)
