"""A list of URLs and paths as a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from inferometer.agent.preprocessing.inputs import EncodedImage, Url
from inferometer.evaluators.datasets import folder
from inferometer.evaluators.datasets.folder import UrlsDataset
from inferometer.manifests.errors import DatasetError, InputError

Listed = Callable[[bytes | str], Path]


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    """Writes a list and returns its path."""

    def write(content: bytes | str) -> Path:
        path = tmp_path / "list.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_each_line_is_an_input_named_by_its_number_and_text(listed: Listed) -> None:
    path = listed(
        "# two\n\nhttp://a.example/1.png\r\n  https://b.example/2.png#part  \n   \nhttp://a.example/1.png"
    )
    samples = list(UrlsDataset(path))
    assert [(sample.id, sample.data, sample.label) for sample in samples] == [
        ("3:http://a.example/1.png", Url("http://a.example/1.png"), None),
        ("4:https://b.example/2.png#part", Url("https://b.example/2.png#part"), None),
        ("6:http://a.example/1.png", Url("http://a.example/1.png"), None),
    ]


def test_a_path_is_relative_to_the_list_and_read_when_its_turn_comes(listed: Listed, tmp_path: Path) -> None:
    path = listed(f"images/é 1.png\n{tmp_path / 'absolute.png'}\n")
    relative, absolute = UrlsDataset(path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "é 1.png").write_bytes(b"one")
    (tmp_path / "absolute.png").write_bytes(b"two")
    assert relative.read() == EncodedImage(b"one")
    assert absolute.read() == EncodedImage(b"two")


@pytest.mark.parametrize("text", ["gone.png", ".", "a\0b.png", "x" * 300, "http:/one-slash.png"])
def test_a_path_that_cannot_be_read_fails_as_an_input_in_one_line(listed: Listed, text: str) -> None:
    (sample,) = UrlsDataset(listed(text))
    with pytest.raises(InputError) as raised:
        sample.read()
    assert str(raised.value).isprintable()


def test_a_scheme_of_any_case_and_kind_makes_a_url(listed: Listed) -> None:
    addresses = ["HTTP://a.example/1.png", "ftp://a.example/2.png", "file:///3.png"]
    assert [sample.data for sample in UrlsDataset(listed("\n".join(addresses)))] == list(map(Url, addresses))


def test_duplicating_repeats_the_list_with_ids_that_stay_unique(listed: Listed) -> None:
    dataset = UrlsDataset(listed("http://a.example/\nb.png\nb.png\n"), duplicate_input=3)
    ids = [sample.id for sample in dataset]
    assert len(ids) == len(set(ids)) == len(dataset) == 9
    assert ids[:4] == ["1:http://a.example/", "2:b.png", "3:b.png", "1.2:http://a.example/"]
    assert [sample.data for sample in dataset][::3] == [Url("http://a.example/")] * 3


def test_a_long_text_is_shortened_in_the_middle_of_the_id_alone(listed: Listed) -> None:
    address = f"https://a.example/{'x' * 500}/photo.jpg"
    (sample,) = UrlsDataset(listed(address))
    assert sample.data == Url(address)
    assert len(sample.id) <= 90
    assert sample.id.startswith("1:https://a.example/xxx")
    assert sample.id.endswith("xxx/photo.jpg")


def test_an_id_is_printable_whatever_the_line_holds(listed: Listed) -> None:
    (sample,) = UrlsDataset(listed("http://a.example/\x1b[31m\u2028.png"))
    assert sample.id == "1:http://a.example/\\x1b[31m\\u2028.png"


def test_the_identity_is_the_file_with_its_checksum_and_the_number_of_inputs(listed: Listed) -> None:
    content = b"\xef\xbb\xbf# list\na.png\nb.png\n"
    path = listed(content)
    identity = UrlsDataset(path, duplicate_input=2).identity
    assert (identity.category, identity.name, identity.version, identity.size) == ("urls", str(path), None, 4)
    assert identity.checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_byte_order_mark_is_no_part_of_the_first_line(listed: Listed) -> None:
    (sample,) = UrlsDataset(listed(b"\xef\xbb\xbfhttp://a.example/"))
    assert sample.data == Url("http://a.example/")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty; give one URL or path per line"),
        (b"\n  \n# nothing\n", "is empty; give one URL or path per line"),
        (b"a.png\n\xff\xd8\xff\xe0", "is not UTF-8 at byte 6"),
    ],
)
def test_a_file_that_lists_nothing_is_refused(listed: Listed, content: bytes, part: str) -> None:
    path = listed(content)
    with pytest.raises(DatasetError, match=part) as raised:
        UrlsDataset(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"gone\.txt cannot be read: No such file or directory"):
        UrlsDataset(tmp_path / "gone.txt")
    with pytest.raises(DatasetError, match="cannot be read: Is a directory"):
        UrlsDataset(tmp_path)


def test_a_file_too_large_to_be_a_list_is_not_taken(listed: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    path = listed("a.png\nb.png\n")
    monkeypatch.setattr(folder, "MAX_LIST_BYTES", 12)
    assert len(UrlsDataset(path)) == 2
    monkeypatch.setattr(folder, "MAX_LIST_BYTES", 11)
    with pytest.raises(DatasetError, match="is larger than 11 bytes"):
        UrlsDataset(path)
