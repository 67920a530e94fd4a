"""STS-B: pairs of sentences with a score of how similar people find them, from 0 to 5.

Cer et al. (2017), SemEval-2017 task 1.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from aureole.errors import InvalidInputError
from aureole_paper.lines import read_lines


class Similar(NamedTuple):
    """Two sentences and their score."""

    first: str
    second: str
    score: float


def load_stsb(folder: Path, part: Literal["train", "dev", "test"]) -> list[Similar]:
    """The pairs of a part, from the data folder."""
    path = folder / "text" / f"stsb_{part}.tsv.gz"
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        try:
            pairs.append(Similar(fields[5], fields[6], float(fields[4])))
        except (IndexError, ValueError) as error:
            raise InvalidInputError(f"{path}, line {number} is not STS-B: {error!r}.") from error
    return pairs
