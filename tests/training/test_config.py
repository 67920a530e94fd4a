"""Configs of ``aureole train``: what they may hold, and errors that name the key."""

import pytest

from aureole.errors import InvalidInputError
from aureole.training._config import (
    EXAMPLES,
    KINDS,
    keys_of,
    paths_of,
    read_config,
    settings_of,
)


def write(folder, text):
    path = folder / "config.toml"
    path.write_text(text)
    return path


PROCESS = '[data]\nkind = "process"\n'


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_configs(tmp_path, kind):
    (tmp_path / "vectors.parquet").touch()
    config = read_config(write(tmp_path, f'[data]\nkind = "{kind}"\n{EXAMPLES[kind]}\n'))
    assert config.kind == kind
    assert settings_of(config).keys() == keys_of(config).keys()
    assert paths_of(config) == [tmp_path / "vectors.parquet"] * (kind == "vectors")


def test_changes_come_after_the_file_and_are_toml_or_text(tmp_path, monkeypatch):
    path = write(tmp_path, PROCESS)
    changes = ["training.lr=1", "loss.name=mcinfonce", 'data.generator="whitened"']
    config = read_config(path, changes)
    assert (config.lr, config.loss) == (1.0, "mcinfonce")
    assert config.generator == "whitened"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.npy").touch()
    (tmp_path / "other").mkdir()
    below = write(tmp_path / "other", '[data]\nkind = "vectors"\npath = "gone.npy"\n')
    assert read_config(below, ["data.path=here.npy"]).path == tmp_path / "here.npy"
    assert read_config(below, ["data.path=here.npy", "encoder.dim=auto"]).dim == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.kind must be one of vectors, process, but is 'missing'"),
        ("steps = 3", "'steps' in .* is outside of a section"),
        ('[data]\nkind = "videos"', "but is 'videos'"),
        ("[data]\nkind = 3", "but is 3"),
        ('[data]\nkind = "process"\ndims = 4', "unknown key 'data.dims' .* Did you mean data.dim?"),
        (
            '[data]\nkind = "process"\n[optimiser]\nq = 1',
            "unknown key 'optimiser.q' .* Valid keys: data.dim",
        ),
        ('[data]\nkind = "process"\ndim = 4.5', "data.dim must be a whole number, but is 4.5"),
        ('[data]\nkind = "process"\ndim = true', "data.dim must be a whole number, but is True"),
        ('[data]\nkind = "process"\ndim = [[4]]', "data.dim must be a whole number, but is"),
        (
            '[data]\nkind = "process"\n[training]\nsteps = -5',
            "training.steps must be at least 1, but is -5",
        ),
        ('[data]\nkind = "process"\n[training]\nlr = nan', "training.lr must be at least 1e-09"),
        ('[data]\nkind = "process"\n[training]\nlr = "fast"', "training.lr must be a number"),
        ('[data]\nkind = "process"\n[loss]\nname = "best"', "loss.name must be one of closed-form"),
        ('[data]\nkind = "process"\nkappa_low = 50', "data.kappa_low must not be above"),
        ('[data]\nkind = "vectors"', "data.path is missing. Table of vectors"),
        ('[data]\nkind = "vectors"\npath = ""', "data.path must be a path"),
        (
            '[data]\nkind = "vectors"\npath = "gone.npy"',
            "data.path is .*gone.npy, which does not exist",
        ),
        ('[data]\nkind = "vectors"\npath = "a\\u0000b"', "which does not exist"),
        ("[data", "is not valid TOML"),
        ("a = " + "[" * 5000, "is not valid TOML"),
    ],
)
def test_errors_name_the_key_and_what_to_do(tmp_path, text, message):
    with pytest.raises(InvalidInputError, match=message):
        read_config(write(tmp_path, text))


def test_files_that_are_no_configs_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"gone\.toml does not exist.*--example vectors"):
        read_config(tmp_path / "gone.toml")
    with pytest.raises(InvalidInputError, match="does not exist or is not a file"):
        read_config(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"\xff\xfe[data]")
    with pytest.raises(InvalidInputError, match="is not valid TOML"):
        read_config(large)


@pytest.mark.parametrize("change", ["steps=3", "training.steps", "=3", ""])
def test_changes_that_set_nothing_are_refused(tmp_path, change):
    with pytest.raises(InvalidInputError, match=r"is not of the form section\.key=value"):
        read_config(write(tmp_path, PROCESS), [change])
