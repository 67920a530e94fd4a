"""The runner of README's commands, on pages that are true and on one that is not."""

import sys

import pytest

from tests.packaging.environments import ROOT, Environment
from tests.packaging.readme import Block, Runner, blocks, is_service

PAGE = """
A page.

```console
$ pip install 'aureole[train]'
$ aureole score v.npy \\
>   --out scored.csv
12 rows
```

<!-- not run: takes an hour -->
```console
$ aureole reproduce all
```

1. In a list:

   ```console
   $ aureole serve --index g.lance
   ```

```python
>>> "$ no command"
```
"""


def test_blocks_are_found_with_their_lines_and_marks():
    found = list(blocks(PAGE))
    assert found == [
        Block(4, ("pip install 'aureole[train]'", "aureole score v.npy \\\n  --out scored.csv")),
        Block(12, ("aureole reproduce all",), "takes an hour"),
        Block(18, ("aureole serve --index g.lance",)),
    ]
    assert [is_service(c) for b in found for c in b.commands] == [False, False, False, True]


def test_a_mark_without_a_reason_or_further_up_does_not_count():
    page = "<!-- not run: -->\n```console\n$ a\n```\n<!-- not run: why -->\n\n```console\n$ b\n```"
    assert [block.reason for block in blocks(page)] == [None, None]


def test_every_block_of_the_readme_has_commands():
    found = list(blocks((ROOT / "README.md").read_text()))
    assert found
    assert all(block.commands for block in found)


@pytest.fixture
def runner(tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    env = Environment(tmp_path / "venv", tmp_path / "work")
    return Runner(env, tmp_path / "c.txt", 20, tmp_path / "dist")


def test_folders_and_variables_stay(runner, tmp_path):
    runner.run("mkdir a && cd a && export COLOUR='deep red'")
    runner.run('echo "$COLOUR" > found; test "$PIP_CONSTRAINT"')
    assert (tmp_path / "work" / "a" / "found").read_text() == "deep red\n"


def test_pip_is_given_the_wheel(runner, tmp_path):
    (tmp_path / "venv" / "bin" / "pip").write_text('#!/bin/sh\necho "$@" > said\n')
    (tmp_path / "venv" / "bin" / "pip").chmod(0o755)
    runner.run("pip install 'aureole[train,explore]'   # a remark")
    said = (tmp_path / "work" / "said").read_text()
    assert said == f"install --find-links {tmp_path / 'dist'} aureole[train,explore]\n"


@pytest.mark.parametrize("command", ["false", "false | true", "no-such-command", "echo Traceback"])
def test_a_command_that_fails_is_an_error(runner, command):
    with pytest.raises(AssertionError):
        runner.run(command)


def test_a_service_is_asked_and_ended(runner, tmp_path):
    (tmp_path / "work" / "healthz").write_text("ok")
    server = (
        "import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
        "print(f'at http://127.0.0.1:{s.server_port}', flush=True); s.serve_forever()"
    )
    runner.serve(f'python -c "{server}"')
    (service,) = runner._services
    assert service.poll() is None
    runner.stop()
    assert service.poll() == -15
    (tmp_path / "work" / "healthz").unlink()
    with pytest.raises(OSError, match="404"):
        runner.serve(f'python -c "{server}"')
    runner.stop()
    with pytest.raises(AssertionError, match="not today"):
        runner.serve("python -c 'raise SystemExit(\"not today\")'")
    runner._services.clear()  # it has ended
