"""Lines of compressed text files."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aureole.errors import InvalidInputError
from aureole_paper.data_folder import require_file

_LONGEST = 1_000_000  # characters


def read_lines(path: Path) -> list[str]:
    """The lines of a gzipped UTF-8 file, without their ends."""
    lines = []
    try:
        with gzip.open(require_file(path), "rt", encoding="utf-8", newline="\n") as file:
            while line := file.readline(_LONGEST + 1):
                if len(line) > _LONGEST:
                    raise InvalidInputError(
                        f"{path}, line {len(lines) + 1} is longer than {_LONGEST:,} characters."
                    )
                lines.append(line.rstrip("\r\n"))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from error
    return lines


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped file with one JSON object a line."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{path}, line {number} is not JSON: {error}.") from error
        if not isinstance(found, dict):
            raise InvalidInputError(f"{path}, line {number} is not a JSON object.")
        yield found
