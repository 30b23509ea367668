"""Converting a dataset into another format: resumed after an interruption, checked, and then renamed.

The journal of a conversion holds its progress, so that another process can continue it. The check reads a
whole dataset, to report its content and its damage.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.files import lock, replacing, sync
from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Text
from inferometer.evaluators.conversion.writers import (
    DIGEST_BITS,
    ArrayWriter,
    DatasetWriter,
    Encoding,
    FolderWriter,
    LmdbWriter,
    RecordWriter,
    added,
    digest_of,
    is_grey,
    suffix_of,
)
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.files import write_class_names
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import ConfigurationError, DatasetError, InputError, OutputError, one_line

_VERSION = 1
FILE = "journal.json"


@dataclass(frozen=True, slots=True)
class Journal:
    """The state of a conversion when its files were last flushed.

    Attributes:
        task: The description of the conversion; another task cannot continue it.
        read: The samples of the source that were read.
        written: The samples that were written.
        payload_bytes: The bytes of their data.
        checksum: The sum of their digests in hexadecimal; see ``encoding.digest_of``.
        failures: The first failed samples, by their place in the source.
        failed: How many failed.
        writer: The state of the writer.
        is_checked: Whether the files are complete and were checked.
    """

    task: Mapping[str, Any]
    read: int = 0
    written: int = 0
    payload_bytes: int = 0
    checksum: str = "0"
    failures: tuple[str, ...] = ()
    failed: int = 0
    writer: Mapping[str, int] = field(default_factory=dict)
    is_checked: bool = False

    def save(self, folder: Path) -> None:
        """Replaces the journal of a folder; raises OSError if it cannot be written."""
        with replacing(folder / FILE, synced=True) as file:
            file.write(json.dumps({"version": _VERSION, **asdict(self)}).encode())


def open_journal(folder: Path, task: Mapping[str, Any]) -> Journal:
    """Returns the journal of a folder, or a new one.

    Raises:
        OutputError: It cannot be read, or is of another task.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != _VERSION:
            raise ValueError("version")
        found = Journal(**content)
        found = replace(found, failures=tuple(found.failures))
        int(found.checksum, 16)
    except FileNotFoundError:
        return Journal(task)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise OutputError(f"{path}: is damaged; remove {folder} to begin again") from error
    if dict(found.task) != dict(task):
        differ = ", ".join(sorted(name for name in task if found.task.get(name) != task[name]))
        raise OutputError(
            f"{folder}: is what another conversion has left, with another {differ}; remove it to begin again"
        )
    return found


def is_finished(folder: Path) -> bool:
    """Returns whether all of a conversion has been written into a folder and checked."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))["is_checked"] is True
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False


TARGETS = ("recordio", "caffe_lmdb", "image_folder", "npz")
_INDEXED = {"recordio": "train.classes.txt", "caffe_lmdb": "classes.txt"}
"""The formats whose labels are numbers, and the file with the names."""
_FLUSHED_EVERY_S = 2.0
_FLUSHED_BYTES = 64 * 1024 * 1024
_KEPT_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion.

    Attributes:
        path: The dataset.
        samples: The samples that were written and checked.
        payload_bytes: The bytes of their data.
        checksum: The sum of their digests; see ``encoding.digest_of``.
        failed: The samples of the source that failed and were left out.
        failures: The first failures.
        resumed: How many samples an earlier process had written.
    """

    path: Path
    samples: int
    payload_bytes: int
    checksum: str
    failed: int
    failures: tuple[str, ...]
    resumed: int


def convert(
    source: Dataset,
    target: Path,
    backend: str,
    encoding: Encoding = Encoding(),  # noqa: B008 - frozen
    *,
    fail_on_error: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Conversion:
    """Writes a dataset in another format, in the same order with the same labels.

    It is written into ``<target>.partial``, which is continued if it is there, read again and compared, and
    renamed at the end: ``target`` never holds a part. A ``.rec`` target is moved after its ``.idx`` and the
    names of its classes.

    Args:
        source: The dataset.
        target: A folder; for ``recordio`` also a ``.rec``; for ``npz`` an ``.npz``.
        backend: The format, one of ``TARGETS``.
        encoding: How images are written.
        fail_on_error: Whether a sample that cannot be read ends the conversion, which can be continued once
            it is repaired; else it is left out and counted.
        on_progress: Called with the current step, the number of samples done, and their total.

    Raises:
        ConfigurationError: An option does not fit the format.
        DatasetError: A sample cannot be read or written, or the written data does not read back equal.
        OutputError: The target exists, cannot be written, or another process writes it.
    """
    _check_options(target, backend, encoding)
    if len(source) and source.sample(0).truth is not None:
        raise ConfigurationError(
            f"{source.identity.name}: has more than classes, such as masks or targets, which {backend} does "
            "not hold; convert a dataset of images and classes"
        )
    partial_folder = target.with_name(f"{target.name}.partial")
    task = {
        "source": source.identity.name,
        "samples": len(source),
        "source_checksum": source.identity.checksum,
        "format": backend,
        **asdict(encoding),
    }
    with _writing(target), _locked(partial_folder):
        if os.path.lexists(target):
            if is_finished(partial_folder):  # a process was killed after it had published
                shutil.rmtree(partial_folder)
            raise OutputError(f"{target}: exists; remove it, or name another target")
        begun = open_journal(partial_folder, task)
        journal = begun
        beside = target.with_suffix(".idx")
        if target.suffix == ".rec" and beside.exists() and not journal.is_checked:
            raise OutputError(f"{beside}: exists; remove it, or name another target")
        if not journal.is_checked:
            run = _Run(source, partial_folder, backend, encoding, fail_on_error, on_progress)
            journal = run.write(journal)
            run.check(journal)
            journal = replace(journal, is_checked=True)
            journal.save(partial_folder)
        _publish(partial_folder, target)
    return Conversion(
        target,
        journal.written,
        journal.payload_bytes,
        journal.checksum,
        journal.failed,
        journal.failures,
        begun.written,
    )


def _check_options(target: Path, backend: str, encoding: Encoding) -> None:
    if backend not in TARGETS:
        raise ConfigurationError(f"to is {backend}; allowed: {', '.join(TARGETS)}")
    if encoding.raw and backend != "caffe_lmdb":
        raise ConfigurationError(f"raw is for caffe_lmdb; {backend} has no choice")
    if backend == "npz" and target.suffix != ".npz":
        raise ConfigurationError(f"{target}: an .npz is a file of that suffix")
    if backend == "npz" and encoding.quality is not None:
        raise ConfigurationError("an .npz holds pixels, which have no quality")
    if backend != "npz" and target.suffix in {".npz", ".zip"}:
        raise ConfigurationError(f"{target}: is the name of a file, and {backend} is a folder")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Creates the folder of a conversion, and keeps other processes from it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.with_name(f"{folder.name}.lock")
    try:
        locked = lock(place)
    except BlockingIOError as error:
        raise OutputError(f"{folder}: another process is writing it") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the process before may have renamed it
        yield
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        place.unlink(missing_ok=True)
        locked.close()


class _Run:
    """One run of a conversion in its folder."""

    def __init__(
        self,
        source: Dataset,
        folder: Path,
        backend: str,
        encoding: Encoding,
        fail_on_error: bool,
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._source = source
        self._folder = folder
        self._content = folder / "content"
        self._backend = backend
        self._encoding = encoding
        self._fail_on_error = fail_on_error
        self._on_progress = on_progress
        self._numbers = _class_numbers(source) if backend in _INDEXED else None

    def write(self, journal: Journal) -> Journal:
        """Writes the samples from where a journal is, and returns the last journal."""
        self._content.mkdir(exist_ok=True)
        if journal.read == len(self._source) and journal.writer.get("finished"):
            return journal
        with self._writer(journal) as writer:
            flushed_s, flushed_bytes = time.monotonic(), journal.payload_bytes
            for index in range(journal.read, len(self._source)):
                journal = self._one(writer, journal, index)
                self._on_progress("writing", index + 1, len(self._source))
                late = time.monotonic() - flushed_s > _FLUSHED_EVERY_S
                if late or journal.payload_bytes - flushed_bytes > _FLUSHED_BYTES:
                    journal = replace(journal, writer=writer.flush())
                    journal.save(self._folder)
                    flushed_s, flushed_bytes = time.monotonic(), journal.payload_bytes
            journal = replace(journal, writer=writer.flush())
            journal.save(self._folder)
            if not journal.written:
                raise DatasetError(f"{self._source.identity.name}: no sample can be read")
            writer.finish()
        if self._numbers and (name := _INDEXED.get(self._backend)):
            write_class_names(self._content / name, tuple(self._numbers))
        journal = replace(journal, writer={**journal.writer, "finished": 1})
        journal.save(self._folder)
        return journal

    def _one(self, writer: DatasetWriter, journal: Journal, index: int) -> Journal:
        """Converts one sample."""
        sample = self._source.sample(index)
        try:
            number = self._number(sample)
            payload = sample.read()
            written = writer.write(journal.written, payload, sample.label, number)
        except InputError as error:
            what = f"{sample.id}: {one_line(error)}"
            if self._fail_on_error:
                raise DatasetError(
                    f"{self._source.identity.name}: {what}; leave out such samples with --fail_on_error=false"
                ) from error
            kept = journal.failures if journal.failed >= _KEPT_FAILURES else (*journal.failures, what)
            return replace(journal, read=index + 1, failed=journal.failed + 1, failures=kept)
        digest = digest_of(journal.written, sample.label, written)
        return replace(
            journal,
            read=index + 1,
            written=journal.written + 1,
            payload_bytes=journal.payload_bytes + size_of(written),
            checksum=f"{added(int(journal.checksum, 16), digest):x}",
        )

    def _number(self, sample: Sample) -> int | None:
        """Returns the index of the class of a sample, where the format has one."""
        if self._backend not in _INDEXED or sample.label is None:
            return None
        if self._numbers is not None:
            return self._numbers[sample.label]
        try:
            return int(sample.label)
        except ValueError:
            raise InputError(f"has the label {sample.label}, which is no index of a class") from None

    def _writer(self, journal: Journal) -> DatasetWriter:
        folder, encoding, state = self._content, self._encoding, journal.writer
        if self._backend == "recordio":
            return RecordWriter(folder, encoding, state)
        if self._backend == "caffe_lmdb":
            try:
                return LmdbWriter(folder, encoding, state)
            except ImportError as error:
                raise ConfigurationError(
                    f"caffe_lmdb requires the package lmdb, which cannot be imported ({one_line(error)}); "
                    "install it with: pip install 'inferometer[data]'"
                ) from error
        if self._backend == "image_folder":
            return FolderWriter(folder, encoding, state)
        make = _array_maker(self._source, encoding, self._on_progress)
        first = next(_arrays(self._source, make), None)
        if first is None:
            raise DatasetError(f"{self._source.identity.name}: no sample can be read")
        return ArrayWriter(
            folder,
            encoding,
            state,
            count=len(self._source),
            first=first,
            convert=make,
        )

    def check(self, journal: Journal) -> None:
        """Reads the written dataset, and compares its count and checksum.

        Raises:
            DatasetError: They differ.
        """
        place = self._content / ArrayWriter.FILE if self._backend == "npz" else self._content
        dataset = open_path(place, self._source.identity.category, self._backend)
        try:
            checksum, count = 0, len(dataset)
            for index, sample in enumerate(dataset):
                checksum = added(checksum, digest_of(index, sample.label, sample.read()))
                self._on_progress("checking", index + 1, count)
        except InputError as error:
            raise DatasetError(f"{self._content}: does not read back: {error}") from error
        finally:
            dataset.close()
        if count != journal.written or checksum != int(journal.checksum, 16):
            raise DatasetError(
                f"{self._content}: holds {count} samples with the checksum {checksum:x}; {journal.written} "
                f"with {journal.checksum} were written; remove {self._folder} to begin again"
            )


def size_of(payload: Payload) -> int:
    """Returns the bytes of a sample's data."""
    if isinstance(payload, EncodedImage):
        return len(payload.content)
    if isinstance(payload, Text):
        return payload.nbytes
    return payload.array.nbytes if isinstance(payload, Pixels | Tensor) else 0


def _class_numbers(source: Dataset) -> Mapping[str, int] | None:
    """Returns the index of each class by name, in the order of the names; None if labels are indices."""
    if source.labels_are_indices:
        return None
    labels = sorted(source.labels())
    for label in labels:
        if label != label.strip() or not label or "\n" in label:
            raise DatasetError(f"the class {label!r} can be no line of a file with the names of classes")
    return {label: number for number, label in enumerate(labels)}


def _array_maker(
    source: Dataset, encoding: Encoding, on_progress: Callable[[str, int, int], None]
) -> Callable[[Payload], NDArray[Any]]:
    """Returns what makes the array of a sample: grey if all images are, so that all have one shape."""
    grey = True
    for index, sample in enumerate(source):
        on_progress("looking", index + 1, len(source))
        try:
            payload = sample.read()
            if not isinstance(payload, Tensor) and not is_grey(payload):
                grey = False
                break
        except InputError:
            continue
    return partial(_array, encoding, grey)


def _array(encoding: Encoding, grey: bool, payload: Payload) -> NDArray[Any]:
    if isinstance(payload, Tensor):
        return payload.array
    return encoding.pixels(payload, square=True, grey=grey)


def _arrays(source: Dataset, make: Callable[[Payload], NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yields the arrays of the samples that can be read."""
    for sample in source:
        try:
            yield make(sample.read())
        except InputError:
            continue


def _publish(folder: Path, target: Path) -> None:
    """Renames the written files; continues where an earlier process was killed meanwhile."""
    content = folder / "content"
    if target.suffix == ".npz":
        (content / ArrayWriter.FILE).replace(target)
    elif target.suffix == ".rec":
        for suffix in (".classes.txt", ".idx", ".rec"):
            part = content / f"train{suffix}"
            if part.exists():
                part.replace(target.with_suffix(suffix))
    else:
        content.replace(target)
    shutil.rmtree(folder)
    sync(target.parent)


_AT_ONCE = 256
_DIGESTED = EncodedImage | Pixels | Tensor | Text
_WITH_CHECKSUM = {"zip", "npz"}
"""The formats that keep a checksum of each entry, which reading compares."""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """The content of a dataset.

    Attributes:
        backend: The name of its format.
        samples: The number of its samples, with the failed ones.
        labelled: The number of samples with a class.
        classes: The number of different classes among them.
        payload_bytes: The size of the data of all readable samples, in bytes.
        kinds: How many there are of each kind of data, such as ``EncodedImage``.
        unprotected: Those that can be read and have no checksum, neither of the format nor, as PNG, of their
            own: damage of them that still decodes is not noticed.
        checksum: The sum of their digests, as a conversion has it; None where a sample failed or has none.
        failed: The number of samples that cannot be read or decoded.
        failures: The first failures.
    """

    backend: str
    samples: int
    labelled: int
    classes: int
    payload_bytes: int
    kinds: dict[str, int]
    unprotected: int
    checksum: str | None
    failed: int
    failures: tuple[str, ...]


def check_dataset(
    dataset: Dataset, on_progress: Callable[[int, int], None] = lambda *_: None
) -> DatasetCheck:
    """Reads and decodes every sample.

    Args:
        dataset: The dataset.
        on_progress: Called with the samples that are done, and all.
    """
    classes: set[str] = set()
    kinds: Counter[str] = Counter()
    labelled = payload_bytes = unprotected = failed = done = checksum = digested = 0
    failures: list[str] = []
    samples = iter(dataset)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        while part := list(islice(samples, _AT_ONCE)):
            results = threads.map(_read, range(done, done + len(part)), part)
            for sample, result in zip(part, results, strict=True):
                done += 1
                if sample.label is not None:
                    labelled += 1
                    classes.add(sample.label)
                if isinstance(result, InputError):
                    failed += 1
                    if len(failures) < _KEPT_FAILURES:
                        failures.append(f"{sample.id}: {one_line(result)}")
                else:
                    kinds[result.kind] += 1
                    payload_bytes += result.size
                    unprotected += not (dataset.backend in _WITH_CHECKSUM or result.is_png)
                    checksum = added(checksum, result.digest or 0)
                    digested += result.digest is not None
            on_progress(done, len(dataset))
    return DatasetCheck(
        dataset.backend,
        len(dataset),
        labelled,
        len(classes),
        payload_bytes,
        dict(kinds),
        unprotected,
        f"{checksum:0{DIGEST_BITS // 4}x}" if digested == done else None,
        failed,
        tuple(failures),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """The data kept of a sample; a PNG has checksums, which its decoder compares."""

    kind: str
    size: int
    is_png: bool
    digest: int | None


def _read(index: int, sample: Sample) -> _Read | InputError:
    """Reads and decodes a sample; or returns why that fails."""
    try:
        payload: Payload = sample.read()
        is_png = False
        if isinstance(payload, EncodedImage):
            Encoding().pixels(payload)
            is_png = suffix_of(payload.content) == ".png"
        digest = digest_of(index, sample.label, payload) if isinstance(payload, _DIGESTED) else None
        return _Read(type(payload).__name__, size_of(payload), is_png, digest)
    except InputError as error:
        return error
