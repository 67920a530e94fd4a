"""Completion: what shells offer, by the script alone; the program is not there."""

import shutil
import subprocess

import pytest
import typer

from aureole.cli._app import app
from aureole.cli._completion import Option, Verb, completion_script, read_verbs

VERBS = read_verbs(typer.main.get_command(app))
SLY = 'it\'s $(touch sly) `touch sly` \\ "quoted" a:b [c]'
HOSTILE = [
    Verb("", (("find", SLY),), ()),
    Verb("find", (), (Option(("--rank",), True, ("near", "far"), SLY),)),
]
ASK = {
    "bash": """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_aureole_completion
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": """
source $argv[1]
complete -C (string join ' ' -- (string escape -n -- $argv[2..]))
""",
}


def offered(shell, folder, *words, verbs=VERBS):
    """What a shell offers for the last of the words."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script, program = folder / "script", folder / "program"
    script.write_text(completion_script(shell, "aureole", verbs))
    program.write_text(ASK[shell])
    done = subprocess.run(
        [shutil.which(shell), program, script, "aureole", *words],
        cwd=folder, capture_output=True, text=True, timeout=20, check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_verbs_options_and_choices(shell, tmp_path):
    def ask(*words):
        return offered(shell, tmp_path, *words)

    every = {name for name, _ in VERBS[0].words}
    assert {"quickstart", "fit-head", "index", "serve"} <= every
    assert set(ask("")) == every
    assert ask("sea") == ["search"]
    assert set(ask("index", "")) == {"build", "append", "info", "approximate"}
    assert ask("index", "bu") == ["build"]
    assert ask("score", "v.npy", "--vec") == ["--vector-column"]
    assert ask("index", "build", "--conformal-p") == ["--conformal-pairs"]
    assert set(ask("serve", "--no")) == {"--normalized", "--not-normalized"}
    assert set(ask("search", "g.faiss", "--rank", "")) == {"cosine", "positivity"}
    assert ask("search", "g.faiss", "--rank", "pos") == ["positivity"]
    assert set(ask("--show-completion", "")) == {"bash", "zsh", "fish"}
    # a word that is a verb elsewhere, and the value of an option
    assert ask("search", "index", "--vector-f") == ["--vector-from"]
    assert "--index" in ask("serve", "--")


def test_bash_takes_an_equals_sign_for_a_word(tmp_path):
    assert offered("bash", tmp_path, "search", "--rank", "=", "c") == ["cosine"]
    assert offered("bash", tmp_path, "search", "--rank", "=") == ["cosine", "positivity"]
    # nothing, which means files
    assert offered("bash", tmp_path, "search", "--head", "") == []
    assert offered("bash", tmp_path, "score", "") == []


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_help_is_text_and_is_never_run(shell, tmp_path):
    assert offered(shell, tmp_path, "", verbs=HOSTILE) == ["find"]
    assert offered(shell, tmp_path, "find", "--rank", "n", verbs=HOSTILE) == ["near"]
    assert not (tmp_path / "sly").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("verbs", [VERBS, HOSTILE], ids=["ours", "hostile"])
def test_scripts_are_of_their_shell(shell, verbs, tmp_path):
    script = completion_script(shell, "aureole", verbs)
    assert "python" not in script.lower()
    for verb in verbs:
        for option in verb.options:
            for name in option.names:
                assert (name if shell != "fish" else f"-l {name.removeprefix('--')}") in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True, cwd=tmp_path, timeout=20)


def test_every_verb_and_option_of_the_help_is_known():
    known = {verb.path: verb for verb in VERBS}
    assert known["index"].words
    assert {"index build", "reproduce", "search"} <= set(known)
    rank = next(o for o in known["search"].options if "--rank" in o.names)
    assert (rank.valued, rank.choices) == (True, ("cosine", "positivity"))
    as_json = next(o for o in known["search"].options if "--json" in o.names)
    assert not as_json.valued
