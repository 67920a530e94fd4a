"""``tools/voice.py`` on small texts."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "voice.py"


@pytest.fixture
def voice(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("voice_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "src" / "aureole").mkdir(parents=True)
    return module


def write(root, text):
    path = root / "src" / "aureole" / "toy.py"
    path.write_text(text)
    return path


def test_phrases_across_lines_and_literals(voice, tmp_path):
    write(
        tmp_path, 'X = (\n    "the file is not "\n    f"there"\n)\n# made\n# anew\nY = X is None\n'
    )
    found = [(line, term) for _, line, _, term in voice.hits(voice.PHRASES)]
    assert [line for line, _ in found] == [2, 6]


def test_allowed(voice, tmp_path):
    write(tmp_path, '"""Embeddings that know how sure they are. Make sure of it."""\n')
    assert list(voice.hits(voice.PHRASES)) == []


def test_texts(voice, tmp_path):
    path = write(
        tmp_path,
        '"""First.\n\nSecond."""\ndef f(x, option):\n    option(help="Rows.")\n    raise ValueError(f"bad {x}")\n',
    )
    texts = {text.kind: (text.line, text.text) for text in voice.texts(path)}
    assert texts == {"docstring": (1, "First."), "help": (5, "Rows."), "message": (6, "bad {x}")}


def test_exit_code(voice, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["voice.py", "--check"])
    write(tmp_path, "# whoever reads this\n")
    assert voice.main() == 1
    write(tmp_path, "# you\n")
    assert voice.main() == 0
    assert "0 phrases" in capsys.readouterr().out
