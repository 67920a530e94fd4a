"""Licences of the direct dependencies: all are in the table of docs/licences.md, and all are accepted."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "licences.py"


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_direct_dependency_is_in_the_table(licences):
    table = licences.read_table(licences.PAGE.read_text())
    assert sorted(table) == sorted(licences.direct_dependencies())
    assert len(table) > 50


def test_every_licence_is_accepted(licences):
    table = licences.read_table(licences.PAGE.read_text())
    for name, users in licences.direct_dependencies().items():
        row = licences.Row(name, users, table[name])
        assert row.kind != "not accepted", f"{name}: {row.licence}"
        if row.kind != "permissive" and name != "psycopg":
            assert set(users) <= licences.TOOLS, f"{name} reaches users: {row.licence}"


def test_table_agrees_with_the_installed_packages(licences):
    table = licences.read_table(licences.PAGE.read_text())
    found = {name: licences.licence_of(name) for name in table}
    different = {
        name: (table[name], licence)
        for name, licence in found.items()
        if licence is not None and licences.is_permissive(licence) != licences.is_permissive(table[name])
    }  # fmt: skip
    assert not different


def test_unknown_and_copyleft_licences_are_refused(licences):
    for licence in (
        "unknown",
        "GPL-3.0-only",
        "AGPL-3.0-only",
        "Proprietary",
        "MIT AND GPL-2.0-only",
    ):
        assert licences.Row("a", ("core",), licence).kind == "not accepted"
    assert licences.Row("a", ("core",), "GPL-2.0-only OR MIT").kind == "permissive"


def test_writing_the_table_keeps_the_page(licences):
    rows = [
        licences.Row("a", ("core", "dev"), "MIT"),
        licences.Row("pylint", ("dev",), "GPL-2.0-or-later"),
    ]
    page = licences.with_table(f"# Title\n{licences.START}old\n{licences.END}after\n", rows)
    assert licences.read_table(page) == {"a": "MIT", "pylint": "GPL-2.0-or-later"}
    assert page.startswith("# Title\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert licences.with_table(page, rows) == page


def test_names_and_users_of_dependencies(licences, tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "aureole"\ndependencies = ["Torch>=2.6", "ruamel.yaml; python_version > \'3\'"]\n'
        '[project.optional-dependencies]\nserve = ["uvicorn[standard]>=0.30", "torch"]\nall = ["aureole[serve]"]\n'
    )
    expected = {"ruamel-yaml": ("core",), "torch": ("core", "serve"), "uvicorn": ("serve",)}
    assert licences.direct_dependencies(project) == expected
