"""A gallery of strangers: nothing that its files name is opened outside of its folder."""

import shutil

import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.errors import DamagedGalleryError

GALLERY = VonMisesFisher(torch.eye(3), torch.tensor([5.0, 1.0, 2.0]))


@pytest.mark.parametrize("place", ["private", "s3://stranger/gallery"])
def test_a_lance_table_whose_manifest_names_other_folders_is_refused(tmp_path, place):
    lance = pytest.importorskip("lance")
    secret, received = tmp_path / "secret.lance", tmp_path / "received.lance"
    CredibleIndex.create(secret, GALLERY, ["a", "b", "c"]).close()
    table = lance.dataset(str(secret))
    if place == "private":
        table.shallow_clone(str(received), table.version)
    else:
        shutil.copytree(secret, received)
        base = lance.DatasetBasePath(place, name="other", is_dataset_root=True)
        lance.dataset(str(received)).add_bases([base])
    with pytest.raises(DamagedGalleryError, match="names files outside of its folder"):
        CredibleIndex.open(received)
    assert CredibleIndex.open(secret).count() == 3
