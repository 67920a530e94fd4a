"""The tables."""

from aureole_paper.controlled_report import ratio
from aureole_paper.records import MISSING, group
from aureole_paper.tables import generic_table, numbered, present


def cells(table, name):
    """The cells of a row by header; paper and ours by the header above them."""
    heads = [label for label, width in table.spans for _ in range(width)]
    heads = heads or [""] * len(table.header)
    keys = [f"{over} {head}".strip() for over, head in zip(heads, table.header, strict=True)]
    (row,) = (row for row in table.rows if row[0] == name)
    return dict(zip(keys, row, strict=True))


def test_all_tables_are_rectangular_and_show_preset_seeds_and_time(tables):
    for table in tables.values():
        assert {len(row) for row in table.rows} == {len(table.header)}
        if table.spans:
            assert sum(width for _, width in table.spans) == len(table.header)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
        assert {"preset", "seeds", "time, s"} <= set(table.header)


def test_the_paper_stands_beside_ours(tables):
    table = tables["Recovery of known posteriors"]
    row = cells(table, "ambiguous")
    assert row["κ rank corr. ↑ paper"] == "0.82 ± 0.04"
    assert row["κ rank corr. ↑ ours"] == "0.960 ± 0.010"
    assert row["κ MAE ↓ ours"] == "0.700 ± 0.100"
    assert (row["κ range"], row["D"]) == ("[16, 32]", "10")
    assert (row["preset"], row["seeds"], row["time, s"]) == ("fast", "2", "12")
    assert cells(table, "ambiguous-paper")["preset"] == "paper"
    assert "MAE" in table.caption
    assert "RMSE" in table.caption


def test_points_show_where_kappa_goes(tables):
    row = cells(tables["Recovery of known posteriors"], "injective")
    assert row["κ range"] == "∞"
    assert row["κ MAE ↓ paper"] == "κ → ∞"
    assert row["κ MAE ↓ ours"] == "median κ 3.1e4"
    assert row["κ rank corr. ↑ ours"] == MISSING


def test_base_has_a_paper_number_only_where_the_paper_has_that_row(tables):
    assert cells(tables["Losses"], "base")["κ MAE ↓ paper"] == MISSING
    for title in ("Dimension of the encoder", "One backbone with two heads"):
        assert cells(tables[title], "base")["κ MAE ↓ paper"] == "6.15 ± 0.61"


def test_a_loss_without_kappa_says_so(tables):
    row = cells(tables["Losses"], "losses-infonce")
    assert row["κ MAE ↓ ours"] == "not learned"
    assert row["loss"] == "InfoNCE, scale 20"
    assert cells(tables["Losses"], "losses-elk")["loss"] == "ELK, scale 1"


def test_sources_show_what_changed(tables):
    table = tables["Where the error of κ comes from"]
    row = cells(table, "sources-full-rank-mc")
    assert (row["full-rank generator"], row["loss"]) == ("yes", "MCInfoNCE, 16 samples")
    assert row["centring"] == MISSING
    assert row["mean κ, ours / true"] == "1.04"
    assert cells(table, "base")["centring"] == "0.02"


def test_the_encoders_are_in_the_order_of_their_dimensions(tables):
    names = [row[0] for row in tables["Dimension of the encoder"].rows]
    assert names == ["encoder-dim-8", "base", "encoder-dim-64"]


def test_coverage_is_in_percent(tables):
    rows = {row[0]: row for row in tables["Coverage"].rows}
    assert rows["clear"][3] == "89.0"
    assert "encoder-dim-8" not in rows


def test_a_generic_table_shows_all_that_are_numbers(groups):
    table = generic_table("Bimodal", "", groups, ["bimodal-mixture-3"])
    row = cells(table, "bimodal-mixture-3")
    assert row["divergence"] == "0.125"
    assert not {"examples", "curve", "scatter", "seconds training"} & set(row)


def test_runs_of_other_lengths_are_told(run):
    runs = [run(seed=4), run(seed=5)]
    for each, steps in zip(runs, (60, 2000), strict=True):
        each.record.settings["steps"] = steps
    table = generic_table("", "", group(runs), ["ambiguous"])
    assert cells(table, "ambiguous")["batches"] == "60 to 2000"


def test_ratios_are_of_the_same_run(run):
    runs = [run(seed=4, a=2.0, b=1.0), run(seed=5, a=9.0), run(seed=6, a=4.0, b=1.0)]
    found = ratio(runs, "a", "b")
    assert found is not None
    assert (found.mean, found.n) == (3.0, 2)
    assert ratio(runs, "a", "c") is None


def test_names_keep_their_order_and_appear_once(groups):
    names = ["clear", "ambiguous", "ambiguous-paper"]
    assert present(groups, [*names, "absent"]) == names
    assert [n for n, _ in numbered(groups, "mc-samples-")] == [4, 16, 512]
