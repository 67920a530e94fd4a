"""Files that are whole or not there."""

import pytest

from aureole._io import atomic_file, atomic_write


def test_a_file_appears_at_the_end_readable_by_others_and_its_folder_is_made(tmp_path):
    path = tmp_path / "deep" / "page.html"
    with atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_text() == "half and half"
    assert path.stat().st_mode & 0o777 == 0o644
    assert atomic_write(path, "über\n") == path
    assert path.read_bytes() == "über\n".encode()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_the_file_before_and_nothing_beside_it(tmp_path, error):
    path = atomic_write(tmp_path / "config.json", b"{}")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]
