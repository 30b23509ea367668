"""Converts a dataset into another format; a conversion can be resumed, is checked, and is renamed last.

The journal of a conversion holds its progress, so another process can continue it. The check reads a whole
dataset, and reports its content and any damage.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from inferometer.agent.files import lock, replacing, sync
from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Text, size_of
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
    publish,
    suffix_of,
)
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import (
    ConfigurationError,
    DatasetError,
    InputError,
    OutputError,
    explained,
    one_line,
)

_VERSION = 1
FILE = "journal.json"


@dataclass(frozen=True, slots=True)
class Journal:
    """The state of a conversion when its files were last flushed.

    Attributes:
        task: The description of the conversion; another task cannot continue it.
        read: The number of samples read from the source.
        written: The number of samples written.
        payload_bytes: The size of the written data, in bytes.
        checksum: The sum of the samples' digests in hexadecimal; see ``digest_of``.
        failures: The first failed samples with their errors, in the order of the source.
        failed: The number of failed samples.
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
        with replacing(folder / FILE, synced=True, alone=True) as file:
            file.write(json.dumps({"version": _VERSION, **asdict(self)}).encode())


def _open_journal(folder: Path, task: Mapping[str, Any]) -> Journal:
    """Returns the journal of a folder, or a new one; raises OutputError if it belongs to another task."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != _VERSION:
            raise ValueError("version")
        found = Journal(**content | {"failures": tuple(content.get("failures", ()))})
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
            f"{folder}: is from another conversion, with another {differ}; remove it to begin again"
        )
    return found


def _is_finished(folder: Path) -> bool:
    """Returns whether a conversion has been completely written into a folder and checked."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))["is_checked"] is True
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False


_INDEXED = {"recordio": "train.classes.txt", "caffe_lmdb": "classes.txt"}
"""The formats whose labels are numbers, with the file that holds the names of the classes."""
_WRITERS: Mapping[str, Callable[[Path, Encoding, Mapping[str, int]], DatasetWriter]] = {
    "recordio": RecordWriter,
    "caffe_lmdb": LmdbWriter,
    "image_folder": FolderWriter,
}
"""The writers that need no information about the source."""
TARGETS = (*_WRITERS, "npz")
_Progress: TypeAlias = Callable[[str, int, int], None]
_ArrayMaker: TypeAlias = Callable[[Payload], NDArray[Any]]
_CONTENT = "content"
_FLUSHED_EVERY_S = 2.0
_FLUSHED_BYTES = 64 * 1024 * 1024
_KEPT_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion.

    Attributes:
        path: The dataset.
        samples: The number of samples that were written and checked.
        payload_bytes: The size of their data, in bytes.
        checksum: The sum of their digests; see ``digest_of``.
        failed: The number of samples of the source that failed and were left out.
        failures: The first failed samples with their errors.
        resumed: The number of samples that an earlier process had written.
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
    """Writes a dataset in another format, in the same order and with the same labels.

    It is written into ``<target>.partial``, which is continued if it exists, then read back, compared, and
    renamed, so ``target`` never holds a partial dataset. A ``.rec`` target is moved after its ``.idx`` and
    the names of its classes.

    Args:
        source: The dataset.
        target: A folder; for ``recordio`` also a ``.rec``; for ``npz`` an ``.npz``.
        backend: The format, one of ``TARGETS``.
        encoding: How images are written.
        fail_on_error: Whether an unreadable sample ends the conversion, which can be continued once the
            sample is repaired; otherwise it is left out and counted.
        on_progress: Called with the current step, the number of samples done, and their total.

    Raises:
        ConfigurationError: An option does not fit the format.
        DatasetError: A sample cannot be read or written, or the written data does not read back equal.
        OutputError: The target exists, cannot be written, or is being written by another process.
    """
    _check_options(target, backend, encoding)
    if len(source) and source.sample(0).truth is not None:
        raise ConfigurationError(
            f"{source.identity.name}: has truths other than classes, such as masks or targets, which "
            f"{backend} cannot hold; convert a dataset of images and classes"
        )
    partial_folder = target.with_name(f"{target.name}.partial")
    task = {
        "source": source.identity.name,
        "samples": len(source),
        "source_checksum": source.identity.checksum,
        "format": backend,
        **asdict(encoding),
    }
    with _locked(partial_folder, target):
        if os.path.lexists(target):
            if _is_finished(partial_folder):  # a process was killed after it had published
                shutil.rmtree(partial_folder)
            raise OutputError(f"{target}: exists; remove it, or name another target")
        journal = begun = _open_journal(partial_folder, task)
        beside = target.with_suffix(".idx")
        if target.suffix == ".rec" and beside.exists() and not journal.is_checked:
            raise OutputError(f"{beside}: exists; remove it, or name another target")
        if not journal.is_checked:
            numbers = _class_numbers(source) if backend in _INDEXED else None
            run = _Run(source, partial_folder, backend, encoding, fail_on_error, on_progress, numbers)
            journal = run.write(journal)
            run.check(journal)
            journal = replace(journal, is_checked=True)
            journal.save(partial_folder)
        publish(partial_folder / _CONTENT, target)
        shutil.rmtree(partial_folder)
        sync(target.parent)
    written = journal.written, journal.payload_bytes, journal.checksum
    return Conversion(target, *written, journal.failed, journal.failures, resumed=begun.written)


def _check_options(target: Path, backend: str, encoding: Encoding) -> None:
    if backend not in TARGETS:
        raise ConfigurationError(f"to is {backend}; allowed: {', '.join(TARGETS)}")
    if encoding.raw and backend != "caffe_lmdb":
        raise ConfigurationError(f"raw is only for caffe_lmdb; leave it out for {backend}")
    if backend == "npz" and target.suffix != ".npz":
        raise ConfigurationError(f"{target}: an .npz must have that suffix")
    if backend == "npz" and encoding.quality is not None:
        raise ConfigurationError("an .npz holds pixels, which have no quality")
    if backend != "npz" and target.suffix in {".npz", ".zip"}:
        raise ConfigurationError(f"{target}: is the name of a file, but {backend} is a folder")


@contextmanager
def _locked(folder: Path, target: Path) -> Iterator[None]:
    """Creates and locks the folder of a conversion; raises OutputError if it cannot be written or locked."""
    place = folder.with_name(f"{folder.name}.lock")
    with explained(OutputError, f"{target}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = lock(place)
        except BlockingIOError as error:
            raise OutputError(f"{folder}: another process is writing it") from error
        with held:
            folder.mkdir(exist_ok=True)  # the process before may have renamed it
            try:
                yield
            finally:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
                place.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a conversion in its folder; ``numbers`` are the indices of classes that have names."""

    source: Dataset
    folder: Path
    backend: str
    encoding: Encoding
    fail_on_error: bool
    on_progress: _Progress
    numbers: Mapping[str, int] | None

    @property
    def content(self) -> Path:
        """The folder that holds the files."""
        return self.folder / _CONTENT

    def write(self, journal: Journal) -> Journal:
        """Writes the samples that the journal does not cover yet, and returns the last journal."""
        self.content.mkdir(exist_ok=True)
        if journal.read == len(self.source) and journal.writer.get("finished"):
            return journal
        with self._writer(journal) as writer:
            flushed_s, flushed_bytes = time.monotonic(), journal.payload_bytes
            for index in range(journal.read, len(self.source)):
                journal = self._one(writer, journal, index)
                self.on_progress("writing", index + 1, len(self.source))
                late = time.monotonic() - flushed_s > _FLUSHED_EVERY_S
                if late or journal.payload_bytes - flushed_bytes > _FLUSHED_BYTES:
                    journal = self._saved(journal, writer.flush())
                    flushed_s, flushed_bytes = time.monotonic(), journal.payload_bytes
            journal = self._saved(journal, writer.flush())
            if not journal.written:
                raise DatasetError(f"{self.source.identity.name}: no sample can be read")
            writer.finish()
        if self.numbers:
            names = "".join(f"{name}\n" for name in self.numbers)
            (self.content / _INDEXED[self.backend]).write_text(names, encoding="utf-8")
        return self._saved(journal, {**journal.writer, "finished": 1})

    def _saved(self, journal: Journal, writer: Mapping[str, int]) -> Journal:
        """Saves a journal with the state of the writer, and returns it."""
        journal = replace(journal, writer=writer)
        journal.save(self.folder)
        return journal

    def _one(self, writer: DatasetWriter, journal: Journal, index: int) -> Journal:
        """Converts one sample."""
        sample = self.source.sample(index)
        try:
            number = self._number(sample)
            payload = sample.read()
            written = writer.write(journal.written, payload, sample.label, number)
        except InputError as error:
            what = f"{sample.id}: {one_line(error)}"
            if self.fail_on_error:
                raise DatasetError(
                    f"{self.source.identity.name}: {what}; leave out such samples with --fail_on_error=false"
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
        """Returns the index of the class of a sample; None if the format or the sample has none."""
        if self.backend not in _INDEXED or sample.label is None:
            return None
        if self.numbers is not None:
            return self.numbers[sample.label]
        try:
            return int(sample.label)
        except ValueError:
            raise InputError(f"has the label {sample.label}, which is not the index of a class") from None

    def _writer(self, journal: Journal) -> DatasetWriter:
        folder, encoding, state = self.content, self.encoding, journal.writer
        if (writer := _WRITERS.get(self.backend)) is not None:
            return writer(folder, encoding, state)
        make = _array_maker(self.source, encoding, self.on_progress)
        for sample in self.source:
            with suppress(InputError):
                first = make(sample.read())
                return ArrayWriter(folder, encoding, state, count=len(self.source), first=first, convert=make)
        raise DatasetError(f"{self.source.identity.name}: no sample can be read")

    def check(self, journal: Journal) -> None:
        """Reads the written dataset, and compares its count and checksum."""
        with closing(open_path(self.content, self.source.identity.category, self.backend)) as dataset:
            checksum, count = 0, len(dataset)
            try:
                for index, sample in enumerate(dataset):
                    checksum = added(checksum, digest_of(index, sample.label, sample.read()))
                    self.on_progress("checking", index + 1, count)
            except InputError as error:
                raise DatasetError(f"{self.content}: does not read back: {error}") from error
        if count != journal.written or checksum != int(journal.checksum, 16):
            raise DatasetError(
                f"{self.content}: holds {count} samples with the checksum {checksum:x}; {journal.written} "
                f"with {journal.checksum} were written; remove {self.folder} to begin again"
            )


def _class_numbers(source: Dataset) -> Mapping[str, int] | None:
    """Returns the index of each class by name, in the order of the names; None if labels are indices."""
    if source.labels_are_indices:
        return None
    labels = sorted(source.labels())
    for label in labels:
        if label != label.strip() or not label or "\n" in label:
            raise DatasetError(f"the class {label!r} cannot be a line of a file with the names of classes")
    return {label: number for number, label in enumerate(labels)}


def _array_maker(source: Dataset, encoding: Encoding, on_progress: _Progress) -> _ArrayMaker:
    """Returns the function that makes a sample's array, in grey if all images are, so all have one shape."""
    grey = True
    for index, sample in enumerate(source):
        on_progress("looking", index + 1, len(source))
        with suppress(InputError):
            payload = sample.read()
            grey = isinstance(payload, Tensor) or is_grey(payload)
        if not grey:
            break

    def array(payload: Payload) -> NDArray[Any]:
        if isinstance(payload, Tensor):
            return payload.array
        return encoding.pixels(payload, square=True, grey=grey)

    return array


_AT_ONCE = 256
_DIGESTED = EncodedImage | Pixels | Tensor | Text
_WITH_CHECKSUM = {"zip", "npz"}
"""The formats that keep a checksum for each entry, which is verified on reading."""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """The content of a dataset.

    Attributes:
        backend: The name of its format.
        samples: The number of its samples, including failed ones.
        labelled: The number of samples with a class.
        classes: The number of different classes among them.
        payload_bytes: The size of the data of all readable samples, in bytes.
        kinds: The number of samples of each kind of data, such as ``EncodedImage``.
        unprotected: The number of readable samples without a checksum, either of the format or, as in PNG, of
            their own: damage in them that can still be decoded goes unnoticed.
        checksum: The sum of the digests, as in a conversion; None if a sample failed or has no digest.
        failed: The number of samples that cannot be read or decoded.
        failures: The first failed samples with their errors.
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
        on_progress: Called with the number of samples done, and their total.
    """
    labels: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    payload_bytes = unprotected = failed = done = checksum = digested = 0
    failures: list[str] = []
    samples = iter(dataset)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        while part := list(islice(samples, _AT_ONCE)):
            results = threads.map(_read, range(done, done + len(part)), part)
            for sample, result in zip(part, results, strict=True):
                done += 1
                if sample.label is not None:
                    labels[sample.label] += 1
                if isinstance(result, InputError):
                    failed += 1
                    if len(failures) < _KEPT_FAILURES:
                        failures.append(f"{sample.id}: {one_line(result)}")
                else:
                    kind, size, is_png, digest = result
                    kinds[kind] += 1
                    payload_bytes += size
                    unprotected += not (dataset.backend in _WITH_CHECKSUM or is_png)
                    checksum = added(checksum, digest or 0)
                    digested += digest is not None
            on_progress(done, len(dataset))
    whole = f"{checksum:0{DIGEST_BITS // 4}x}" if digested == done else None
    counts = len(dataset), labels.total(), len(labels), payload_bytes, dict(kinds), unprotected
    return DatasetCheck(dataset.backend, *counts, whole, failed, failures=tuple(failures))


def _read(index: int, sample: Sample) -> tuple[str, int, bool, int | None] | InputError:
    """Returns a sample's kind and size, whether it is a PNG (with checksums) and its digest, or its error."""
    try:
        payload: Payload = sample.read()
        is_png = False
        if isinstance(payload, EncodedImage):
            Encoding().pixels(payload)
            is_png = suffix_of(payload.content) == ".png"
        digest = digest_of(index, sample.label, payload) if isinstance(payload, _DIGESTED) else None
        return type(payload).__name__, size_of(payload), is_png, digest
    except InputError as error:
        return error
