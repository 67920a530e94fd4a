"""Links from signatures to the documentation of Python, torch and numpy, without the network.

Intersphinx reads an inventory per project. The ones of other projects would have to be downloaded by each build, so
this extension writes small ones, of the names that occur in our signatures.
"""

import zlib
from pathlib import Path

# project: (address, {name: (role, path)}); ``$`` stands for the name
PROJECTS = {
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Tensor": ("class", "tensors.html#$"),
            "torch.Generator": ("class", "generated/$.html#$"),
            "torch.device": ("class", "tensor_attributes.html#$"),
            "torch.dtype": ("class", "tensor_attributes.html#$"),
            "torch.Size": ("class", "size.html#$"),
            "torch.nn.Module": ("class", "generated/$.html#$"),
            "torch.nn.Linear": ("class", "generated/$.html#$"),
            "torch.distributions.distribution.Distribution": ("class", "distributions.html#$"),
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {"numpy.ndarray": ("class", "reference/generated/$.html#$")},
    ),
    "python": (
        "https://docs.python.org/3/",
        {
            "pathlib.Path": ("class", "library/pathlib.html#$"),
            "collections.abc.Callable": ("class", "library/collections.abc.html#$"),
            "collections.abc.Iterable": ("class", "library/collections.abc.html#$"),
            "collections.abc.Iterator": ("class", "library/collections.abc.html#$"),
            "collections.abc.Mapping": ("class", "library/collections.abc.html#$"),
            "collections.abc.Sequence": ("class", "library/collections.abc.html#$"),
            "ValueError": ("exception", "library/exceptions.html#$"),
            "RuntimeError": ("exception", "library/exceptions.html#$"),
        },
    ),
}


def inventory(project: str) -> bytes:
    """The inventory of a project, in the second version of Sphinx's format."""
    entries = PROJECTS[project][1].items()
    # Sphinx expands a $ at the end only
    lines = [f"{name} py:{role} 1 {path.replace('$', name)} -" for name, (role, path) in entries]
    header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    return header.encode() + zlib.compress(("\n".join(lines) + "\n").encode())


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """The value of ``intersphinx_mapping``; the inventories are written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for project in PROJECTS:
        (folder / f"{project}.inv").write_bytes(inventory(project))
    return {name: (PROJECTS[name][0], str(folder / f"{name}.inv")) for name in PROJECTS}
