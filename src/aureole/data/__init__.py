"""Data: positive pairs, groups and votes, and readers of tables, arrays and image files."""

from aureole.data._addresses import (
    RemotePath,
    check_bucket,
    full_address,
    is_remote,
    lance_options,
    local_folder,
    resolve,
)
from aureole.data._array_files import ARRAYS
from aureole.data._arrow_columns import (
    fitting,
)
from aureole.data._image_files import (
    count_pixels,
    find_picture,
    open_picture,
    read_picture,
    read_rgb,
    read_square,
    read_thumbnail,
    write_picture,
)
from aureole.data._pairs import (
    Groups,
    PairBatch,
    PairIndex,
    Triplets,
    label_rates,
    poisson_pairs,
)
from aureole.data._table_files import (
    FILES,
    is_picture_folder,
    listed,
    pyarrow_package,
    reading,
    require_columns,
    short,
    table_parts,
)
from aureole.data._tables import (
    ColumnWriter,
    as_vectors,
    check_columns,
    pick_inputs,
    pick_vector,
    read_column,
    read_groups,
    read_pairs,
    read_vectors,
    scan_column,
    scan_inputs,
    table_files,
    write_columns,
)
from aureole.data._vote_files import read_vote_counts, read_votes
from aureole.data._votes import Votes

__all__ = [
    "Groups",
    "PairBatch",
    "Triplets",
    "Votes",
    "label_rates",
    "poisson_pairs",
    "read_column",
    "read_groups",
    "read_pairs",
    "read_vectors",
    "read_vote_counts",
    "read_votes",
    "write_columns",
]
