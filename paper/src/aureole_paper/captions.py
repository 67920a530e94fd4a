"""Multi30k: five captions by different people of each of 31,014 photos, the first the longest on average.

Elliott et al. (2016), Multi30K: multilingual English-German image descriptions.
"""

from pathlib import Path
from typing import Literal

from aureole.errors import InvalidInputError
from aureole_paper.lines import read_lines

CAPTIONS = 5


def load_captions(folder: Path, split: Literal["train", "val", "test_2016"]) -> list[list[str]]:
    """The five captions of each photo of a split, from the data folder."""
    columns = [
        read_lines(folder / "text" / f"multi30k_{split}.{number}.en.gz")
        for number in range(1, CAPTIONS + 1)
    ]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise InvalidInputError(
            f"the caption files of {split} have {sorted(lengths)} lines; they must have as many."
        )
    return [list(captions) for captions in zip(*columns, strict=True)]
