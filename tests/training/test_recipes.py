"""From a config to an encoder: where columns come from, and what the record says of the files."""

import hashlib

import numpy as np
import pytest

from aureole.data import write_columns
from aureole.errors import InvalidInputError
from aureole.training._config import read_config
from aureole.training._recipes import hashes, train


@pytest.fixture
def files(tmp_path):
    """Vectors in an array, their ids and groups in a table beside it, pairs of ids in another."""
    rng = np.random.default_rng(0)
    groups = np.arange(100).repeat(2)
    vectors = rng.normal(size=(100, 8))[groups] + 0.3 * rng.normal(size=(200, 8))
    ids = np.array([f"item {row}" for row in range(200)])
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float32))
    np.save(tmp_path / "groups.npy", groups)
    write_columns(tmp_path / "ids.parquet", {"id": ids, "group": groups})
    write_columns(tmp_path / "pairs.parquet", {"left": ids[::2], "right": ids[1::2]})
    return tmp_path


def trained(folder, **data):
    lines = ["[data]", 'kind = "vectors"', 'path = "vectors.npy"']
    lines += [f'{name} = "{value}"' for name, value in data.items()]
    lines += ["[encoder]", "dim = 4", "[training]", "steps = 3", "items = 64"]
    (folder / "config.toml").write_text("\n".join(lines))
    config = read_config(folder / "config.toml")
    return train(config, folder / "out", work=folder / "work")


@pytest.mark.parametrize(
    "data",
    [
        {"pairs": "pairs.parquet", "columns_from": "ids.parquet", "id_column": "id"},
        {"group_column": "group", "columns_from": "ids.parquet"},
        {"columns_from": "groups.npy"},
    ],
)
def test_ids_of_pairs_and_groups_may_lie_beside_the_vectors(files, data):
    found = trained(files, **data)
    assert found["rows"] == 200
    pairs = [data["pairs"]] if "pairs" in data else []
    assert list(found["data"]) == ["vectors.npy", data["columns_from"], *pairs]


@pytest.mark.parametrize(
    "data",
    [
        {"columns_from": "ids.parquet"},
        {"columns_from": "groups.npy", "pairs": "pairs.parquet"},
        {"columns_from": "ids.parquet", "pairs": "pairs.parquet", "group_column": "group"},
    ],
)
def test_groups_and_pairs_are_one_of_the_two(files, data):
    with pytest.raises(InvalidInputError, match=r"either data\.group_column or data\.pairs"):
        trained(files, **data)


def test_every_file_is_in_the_record_also_where_names(tmp_path):
    table, other = tmp_path / "table", tmp_path / "other"
    for path in (table / "a" / "part.csv", table / "b" / "part.csv", other / "table.csv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of {path.parent.name}")
    (tmp_path / "table.csv").write_text("another")

    def of(text):
        return hashlib.sha256(text.encode()).hexdigest()

    assert hashes([table, other / "table.csv"]) == {
        "table/a/part.csv": of("of a"),
        "table/b/part.csv": of("of b"),
        "table.csv": of("of other"),
    }
    assert hashes([tmp_path / "table.csv", other / "table.csv"]) == {
        "table.csv": of("another"),
        str(other / "table.csv"): of("of other"),
    }
