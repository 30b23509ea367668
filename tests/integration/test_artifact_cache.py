"""The cache: a file is fetched once, and never loads if it is not the expected one."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from file_server import DEADLINE_S, Answer, FileServer

from inferometer.agent.artifacts.downloads import CheckedFile, Downloader, DownloadLimits, DownloadProgress
from inferometer.agent.artifacts.files import ArtifactCache, resolve_artifacts, with_labels
from inferometer.agent.artifacts.locations import Availability, availability, cached_path
from inferometer.manifests.errors import ArtifactError, ArtifactUnavailableError
from inferometer.manifests.schema import ModelManifest

CONTENT = random.Random(0).randbytes(100_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CHECKSUMS = [
    f"sha256:{SHA256}",
    f"sha256:{SHA256[:8]}",
    f"sha1:{hashlib.sha1(CONTENT).hexdigest()}",
    hashlib.md5(CONTENT).hexdigest(),
]
LIMITS = DownloadLimits(connect_timeout_s=5, read_timeout_s=5, tries=1)
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> ArtifactCache:
    return ArtifactCache(directory, Downloader(LIMITS))


def refusal(of: Callable[[], object], kind: type[ArtifactError] = ArtifactError) -> str:
    with pytest.raises(ArtifactError) as caught:
        of()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("checksum", ["", *CHECKSUMS])
def test_a_file_is_fetched_once_and_is_where_it_is_documented(
    file_server: FileServer, cache: ArtifactCache, directory: Path, checksum: str
) -> None:
    url = file_server.serve("/models/net.pt", CONTENT)
    found = cache.fetch(url, checksum, "net.yml")
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    place = directory / "downloads" / file_server.url[7:].replace(":", "_") / key / "net.pt"
    assert found == CheckedFile(place, SHA256, downloaded=True)
    assert place.read_bytes() == CONTENT
    assert names(directory) == {"net.pt", "net.pt.json", "net.pt.lock"}
    assert cache.fetch(url, checksum, "net.yml") == CheckedFile(place, SHA256)
    assert file_server.count("/models/net.pt") == 1


@pytest.mark.parametrize("checksum", [f"sha256:{'0' * 64}", "sha256:00000000", f"sha1:{'0' * 40}", "0" * 32])
def test_another_file_than_is_meant_is_not_kept(
    file_server: FileServer, cache: ArtifactCache, directory: Path, checksum: str
) -> None:
    url = file_server.serve("/net.pt", CONTENT)
    said = refusal(lambda: cache.fetch(url, checksum, "net.yml"))
    assert said.startswith(f"{url}: is not the file that is meant: its ")
    assert said.endswith(checksum.rpartition(":")[2])
    assert names(directory) == {"net.pt.lock"}


@pytest.mark.parametrize("checksum", ["", *CHECKSUMS])
@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"!", b""], ids=["truncated", "longer", "empty"])
def test_a_file_that_was_changed_in_the_cache_never_loads(
    file_server: FileServer, cache: ArtifactCache, checksum: str, content: bytes
) -> None:
    url = file_server.serve("/net.pt", CONTENT)
    place = cache.fetch(url, checksum, "net.yml").path
    place.write_bytes(content)
    said = refusal(lambda: cache.fetch(url, checksum, "net.yml"))
    assert f"{place}: is changed or truncated: its " in said
    assert said.endswith("remove it and net.pt.json to download it again")
    place.unlink()
    place.with_name("net.pt.json").unlink()
    assert cache.fetch(url, checksum, "net.yml").downloaded


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"sha256": ""}', '{"sha256": 5}', '{"sha256": "' + "0" * 64]
)
def test_a_file_whose_record_is_damaged_does_not_load_without_a_checksum(
    file_server: FileServer, cache: ArtifactCache, record: str
) -> None:
    url = file_server.serve("/net.pt", CONTENT)
    place = cache.fetch(url, "", "net.yml").path
    place.with_name("net.pt.json").write_text(record)
    assert "net.pt.json: is damaged" in refusal(lambda: cache.fetch(url, "", "net.yml"))
    assert cache.fetch(url, CHECKSUMS[0], "net.yml").sha256 == SHA256


def test_a_wrong_part_from_before_is_fetched_again(
    file_server: FileServer, cache: ArtifactCache, directory: Path
) -> None:
    url = file_server.serve("/net.pt", Answer(CONTENT, cut_after=5000), Answer(CONTENT))
    refusal(lambda: cache.fetch(url, CHECKSUMS[0], "net.yml"), ArtifactUnavailableError)
    place = cached_path(directory, url)
    with place.with_name("net.pt.part").open("r+b") as part:
        part.write(b"another")
    assert cache.fetch(url, CHECKSUMS[0], "net.yml").path.read_bytes() == CONTENT
    assert file_server.count("/net.pt") == 3


def test_out_of_reach_the_error_says_where_to_put_the_file_by_hand(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    url = f"{NOBODY}/zoo/net.pt"
    said = refusal(lambda: cache.fetch(url, CHECKSUMS[0], "net.yml"), ArtifactUnavailableError)
    start = f"{url} cannot be downloaded: Connection refused; if you can get the file, put it at "
    assert said.startswith(start)
    place = Path(said.removeprefix(start))
    place.write_bytes(CONTENT)
    assert cache.fetch(url, CHECKSUMS[0], "net.yml") == CheckedFile(place, SHA256)
    assert cache.fetch(url, "", "net.yml") == CheckedFile(place, SHA256)
    place.write_bytes(CONTENT[:-1])
    assert "changed or truncated" in refusal(lambda: cache.fetch(url, CHECKSUMS[0], "net.yml"))


def test_an_interrupt_leaves_only_what_the_next_try_needs(file_server: FileServer, directory: Path) -> None:
    def interrupt(progress: DownloadProgress) -> None:
        if progress.done_bytes and not progress.ended:
            raise KeyboardInterrupt

    never = threading.Event()
    url = file_server.serve("/net.pt", Answer(CONTENT, hold=never), Answer(CONTENT))
    with pytest.raises(KeyboardInterrupt):
        ArtifactCache(directory, Downloader(LIMITS, interrupt)).fetch(url, CHECKSUMS[0], "net.yml")
    never.set()
    assert names(directory) == {"net.pt.part", "net.pt.part.json", "net.pt.lock"}
    found = ArtifactCache(directory, Downloader(LIMITS)).fetch(url, CHECKSUMS[0], "net.yml")
    assert found.path.read_bytes() == CONTENT
    assert "Range" in file_server.asked[1].headers


_FETCH = """
import logging, sys
from pathlib import Path
from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.artifacts.downloads import Downloader
logging.basicConfig()
found = ArtifactCache(Path(sys.argv[1]), Downloader()).fetch(sys.argv[2], sys.argv[3], "net.yml")
print(found.downloaded, found.sha256)
"""


def test_two_processes_at_once_fetch_once(file_server: FileServer, directory: Path) -> None:
    go_on = threading.Event()
    url = file_server.serve("/net.pt", Answer(CONTENT, hold=go_on))
    waiting = threading.Event()
    said: list[str] = []

    def run() -> None:
        command = [sys.executable, "-c", _FETCH, str(directory), url, CHECKSUMS[0]]
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root
        ) as process:
            for line in process.stdout:
                said.append(line.strip())
                if "waiting for another process" in line:
                    waiting.set()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(DEADLINE_S)
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert {f"False {SHA256}", f"True {SHA256}"} < set(said)
    assert len(said) == 3
    assert file_server.count("/net.pt") == 1


def test_threads_at_once_fetch_once(file_server: FileServer, cache: ArtifactCache) -> None:
    url = file_server.serve("/net.pt", CONTENT)
    found: list[CheckedFile] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.fetch(url, "", "net.yml"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(file.downloaded for file in found) == [False] * 7 + [True]
    assert file_server.count("/net.pt") == 1


def test_a_cache_that_cannot_be_written_is_one_line(file_server: FileServer, directory: Path) -> None:
    directory.write_text("a file")
    cache = ArtifactCache(directory, Downloader(LIMITS))
    url = file_server.serve("/net.pt", CONTENT)
    said = refusal(lambda: cache.fetch(url, "", "net.yml"))
    assert said.endswith("cannot be written: Not a directory; AGENT_CACHE_DIR can name another directory")


def model(folder: Path, parameters: dict[str, object] | None = None, **files: object) -> ModelManifest:
    found = ModelManifest.model_validate(
        {
            "name": "Net",
            "framework": {"name": "MXNet"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": "classification", "parameters": parameters or {}},
            "model": files,
        }
    )
    found._source = folder / "net.yml"
    return found


@pytest.mark.parametrize("base", ["", "/zoo"])
def test_a_models_files_come_from_where_its_manifest_says(
    file_server: FileServer, cache: ArtifactCache, directory: Path, tmp_path: Path, base: str
) -> None:
    file_server.serve("/zoo/net.json", b"graph")
    file_server.serve("/zoo/net.params", CONTENT)
    where = f"{file_server.url}/zoo/" if not base else ""
    files = {"graph_path": f"{where}net.json", "weights_path": f"{where}net.params"}
    net = model(tmp_path, base_url=base and file_server.url + base, weights_checksum=CHECKSUMS[1], **files)
    assert availability(net, directory) is Availability.TO_DOWNLOAD
    found = resolve_artifacts(net, cache=cache)
    assert found.graph.read_bytes() == b"graph"
    assert found.checksums["weights"] == f"sha256:{SHA256}"
    assert availability(net, directory) is Availability.CACHED
    (tmp_path / "net.json").write_bytes(b"nearer")
    assert availability(net, directory) is Availability.CACHED
    assert resolve_artifacts(net, cache=cache).graph == tmp_path / "net.json"
    assert file_server.count("/zoo/net.json") == 1


def test_weights_that_are_not_wanted_are_not_fetched(
    file_server: FileServer, cache: ArtifactCache, tmp_path: Path
) -> None:
    net = model(tmp_path, architecture="resnet18", weights_path=f"{file_server.url}/net.params")
    assert resolve_artifacts(net, weights=False, cache=cache).weights is None
    assert file_server.asked == []


@pytest.mark.parametrize(("architecture", "hint"), [("resnet18", True), (None, False)])
def test_offline_the_line_says_all_that_can_be_done(
    cache: ArtifactCache,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str | None,
    hint: bool,
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    url = f"{NOBODY}/net.params"
    files = {"architecture": architecture} if architecture else {"graph_path": url}
    net = model(tmp_path, weights_path=url, **files)
    said = refusal(lambda: resolve_artifacts(net, cache=cache), ArtifactUnavailableError)
    kind = "weights" if hint else "graph"
    place = cached_path(directory, url)
    assert said == (
        f"{tmp_path / 'net.yml'}: field model.{kind}_path: {url} cannot be downloaded: Connection refused; "
        f"if you can get the file, put it at {place}"
        + (", or measure only speed with --weights=random" if hint else "")
    )


def test_files_at_file_urls_are_opened_where_they_are(cache: ArtifactCache, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "net.json").write_bytes(CONTENT)
    url = (elsewhere / "net.json").as_uri()
    for address in (url, url.replace("file:///", "file://localhost/"), url.replace("file:///", "file:/")):
        net = model(tmp_path, graph_path=address, graph_checksum=CHECKSUMS[0])
        assert resolve_artifacts(net, cache=cache).graph == elsewhere / "net.json"
        assert availability(net, tmp_path) is Availability.LOCAL
    (elsewhere / "net.json").write_bytes(CONTENT[:-1])
    assert "changed or truncated" in refusal(lambda: resolve_artifacts(net, cache=cache))
    (elsewhere / "net.json").unlink()
    said = refusal(lambda: resolve_artifacts(net, cache=cache), ArtifactUnavailableError)
    assert said.endswith(f"the file {elsewhere / 'net.json'} is missing")
    assert availability(net, tmp_path) is Availability.MISSING


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"net/{name}", data)
    return content.getvalue()


ARCHIVE = zipped(graph=b"graph", weights=CONTENT)


class TestArchives:
    @pytest.fixture
    def net(self, file_server: FileServer, tmp_path: Path) -> ModelManifest:
        url = file_server.serve("/net.zip", ARCHIVE)
        return self.of(tmp_path, url)

    def of(self, folder: Path, base_url: str, **changes: object) -> ModelManifest:
        files = {"graph_path": "net/graph", "weights_path": "./net/weights", "weights_checksum": CHECKSUMS[2]}
        return model(folder, base_url=base_url, is_archive=True, **{**files, **changes})

    def test_a_models_files_are_taken_out_of_one(
        self, file_server: FileServer, cache: ArtifactCache, directory: Path, net: ModelManifest
    ) -> None:
        assert availability(net, directory) is Availability.TO_DOWNLOAD
        for _ in range(2):
            found = resolve_artifacts(net, cache=cache)
            assert (found.graph.read_bytes(), found.weights.read_bytes()) == (b"graph", CONTENT)
            assert found.checksums["weights"] == f"sha256:{SHA256}"
        assert file_server.count("/net.zip") == 1
        assert availability(net, directory) is Availability.CACHED
        folder = f"net.zip-{hashlib.sha256(ARCHIVE).hexdigest()[:16]}"
        assert found.graph == directory / "unpacked" / folder / "net" / "graph"
        assert {p.name for p in (directory / "unpacked").iterdir()} == {
            folder,
            f"{folder}.json",
            f"{folder}.lock",
        }

    def test_one_on_this_machine_is_unpacked_and_again_when_it_changes(
        self, cache: ArtifactCache, tmp_path: Path
    ) -> None:
        net = self.of(tmp_path, "my.zip", weights_checksum="")
        (tmp_path / "my.zip").write_bytes(ARCHIVE)
        assert resolve_artifacts(net, cache=cache).graph.read_bytes() == b"graph"
        (tmp_path / "my.zip").write_bytes(zipped(graph=b"another", weights=CONTENT))
        assert resolve_artifacts(net, cache=cache).graph.read_bytes() == b"another"

    @pytest.mark.parametrize("change", ["graph", "weights"])
    def test_a_file_that_was_changed_after_unpacking_never_loads(
        self, cache: ArtifactCache, net: ModelManifest, change: str
    ) -> None:
        path = getattr(resolve_artifacts(net, cache=cache), change)
        path.write_bytes(path.read_bytes()[:-1])
        said = refusal(lambda: resolve_artifacts(net, cache=cache))
        assert said.startswith(f"{path}: has been changed or truncated since it was unpacked; remove ")
        path.unlink()
        assert f"{path}: is missing; remove " in refusal(lambda: resolve_artifacts(net, cache=cache))

    def test_a_lost_record_is_said(self, cache: ArtifactCache, directory: Path, net: ModelManifest) -> None:
        resolve_artifacts(net, cache=cache)
        (record,) = (directory / "unpacked").glob("*.json")
        record.write_text(json.dumps({"files": []}))
        assert f"{record}: has changed or is missing" in refusal(lambda: resolve_artifacts(net, cache=cache))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"graph_path": "net/grap"}, 'net.zip: holds no "net/grap"; did you mean "net/graph"'),
            ({"graph_checksum": "0" * 32}, 'its "net/graph" is not the file that is meant: its md5 is '),
            ({"weights_checksum": "sha256:00000000"}, "says it begins with 00000000"),
            ({"base_url": ""}, "field model.base_url: is missing; with is_archive, it names the archive"),
            ({"base_url": "none.zip"}, "none.zip is missing"),
        ],
    )
    def test_what_is_not_in_it_is_said(
        self,
        file_server: FileServer,
        cache: ArtifactCache,
        tmp_path: Path,
        changes: dict[str, object],
        said: str,
    ) -> None:
        url = file_server.serve("/net.zip", ARCHIVE)
        net = self.of(tmp_path, **{"base_url": url, **changes})  # type: ignore[arg-type]
        with pytest.raises(ArtifactError) as caught:
            resolve_artifacts(net, cache=cache)
        assert said in str(caught.value)

    def test_one_that_is_refused_leaves_nothing_unpacked(
        self, file_server: FileServer, cache: ArtifactCache, directory: Path, tmp_path: Path
    ) -> None:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("net/graph", b"graph")
            archive.writestr("../../../out", b"x")
        net = self.of(tmp_path, file_server.serve("/bad.zip", content.getvalue()))
        assert "leads out of the archive" in refusal(lambda: resolve_artifacts(net, cache=cache))
        assert {p.suffix for p in (directory / "unpacked").iterdir()} == {".lock"}
        assert "out" not in names(tmp_path)


class TestLabels:
    def labelled(self, folder: Path, **parameters: object) -> ModelManifest:
        return model(folder, parameters, graph_path="net.json")

    def labels(self, net: ModelManifest, cache: ArtifactCache, needed: bool = True) -> tuple[str, ...]:
        return with_labels(net, needed=needed, cache=cache).output.parameters.labels

    def test_they_come_from_a_url_a_file_url_or_a_path(
        self, file_server: FileServer, cache: ArtifactCache, tmp_path: Path
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "own.txt").write_bytes(b"a\nb\n")
        url = file_server.serve("/synset.txt", b"n01 tench\nn02 hen\n")
        checksum = hashlib.md5(b"a\nb\n").hexdigest()
        for address in ("sub/own.txt", (tmp_path / "sub" / "own.txt").as_uri()):
            net = self.labelled(tmp_path, features_url=address, features_checksum=checksum)
            assert self.labels(net, cache) == ("a", "b")
        assert self.labels(self.labelled(tmp_path, features_url=url), cache) == ("n01 tench", "n02 hen")

    @pytest.mark.parametrize(
        "address", [f"{NOBODY}/synset.txt", "none.txt", "file:///none.txt", "s3://b/k.txt"]
    )
    def test_where_they_cannot_be_had_the_manifests_own_stay_and_without_any_it_is_said(
        self, cache: ArtifactCache, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "*")
        own = self.labelled(tmp_path, features_url=address, labels=["x", "y"])
        assert self.labels(own, cache) == ("x", "y")
        none = self.labelled(tmp_path, features_url=address)
        assert self.labels(none, cache, needed=False) == ()
        said = refusal(lambda: self.labels(none, cache), ArtifactUnavailableError)
        assert said.endswith("; without it the model has no labels")

    def test_the_wrong_ones_are_not_replaced_by_the_manifests_own(
        self, file_server: FileServer, cache: ArtifactCache, tmp_path: Path
    ) -> None:
        url = file_server.serve("/synset.txt", b"a\nb\n")
        net = self.labelled(tmp_path, features_url=url, features_checksum="0" * 32, labels=["x", "y"])
        assert "is not the file that is meant" in refusal(lambda: self.labels(net, cache))
