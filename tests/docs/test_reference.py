"""Every public name has a docstring that says what it is, for the API reference."""

import re

import api_reference
import pytest

NAMES = [
    (f"{api_reference.TOP}.{package}.{name}", thing)
    for package in api_reference.packages()
    for name, thing in api_reference.public(f"{api_reference.TOP}.{package}")
]


@pytest.mark.parametrize(("path", "thing"), NAMES, ids=[path for path, _ in NAMES])
def test_the_first_line_of_a_docstring_is_a_sentence(path, thing):
    line = api_reference.first_line(thing)
    assert len(line) > 10, path
    assert not re.match(r"(What|Whether|How|Who|Where) ", line), line
    assert not line.startswith("("), line


def test_names_of_the_package_are_documented_in_a_subpackage():
    things = [thing for _, thing in NAMES]
    assert [name for name, thing in api_reference.public("aureole") if thing not in things] == []
