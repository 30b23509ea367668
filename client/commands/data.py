"""``agent data``: converts, checks and downloads datasets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import FILE, Command, Group, boolean, current_invocation, option
from inferometer.client.cli.output import EXIT_CODES, SUCCESS, output_options, print_rows
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.manifests.errors import DatasetError

if TYPE_CHECKING:
    from inferometer.evaluators.conversion.convert import DatasetCheck
    from inferometer.evaluators.datasets.base import Dataset

_TARGETS = ("recordio", "caffe_lmdb", "image_folder", "npz")


@click.group(cls=Group)
def data() -> None:
    """Convert, check and download datasets."""


_backend_option = option(
    "--data_backend",
    metavar="NAME",
    help="Format of what is read: recordio, caffe_lmdb, image_folder, npz, zip, ilsvrc2012_validation, "
    "cifar10, mnist, coco or voc.  [default: detected]",
)


def _opened(path: Path, backend: str | None) -> Dataset:
    """Opens the dataset at a path; if the path does not exist, opens the dataset with that name."""
    from inferometer.evaluators.datasets.opening import open_dataset, open_path

    invocation = current_invocation()
    if backend is None and not path.exists():
        for manifest in invocation.catalog.datasets:
            if manifest.name.casefold() == str(path).casefold():
                named = invocation.catalog.find_dataset(manifest.name)
                return open_dataset(named, invocation.cache)
    return open_path(path, "vision", backend)


@data.command(cls=Command)
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@option("--to", "backend", required=True, type=click.Choice(_TARGETS), help="Format to write.")
@boolean("--raw", help="Pixels instead of encoded images, in an LMDB.")
@option(
    "--resize",
    type=click.IntRange(1, 16384),
    metavar="SIDE",
    help="Resize the shorter side to this many pixels; in an .npz, crop a square as well.",
)
@option(
    "--quality",
    type=click.IntRange(1, 100),
    metavar="Q",
    help="Encode all images as JPEG of this quality.  [default: files are kept; resized JPEG gets 95]",
)
@boolean(
    "--fail_on_error",
    default=True,
    help="Stop at a sample that cannot be read; otherwise leave it out and count it.",
)
@_backend_option
def convert(
    source: Path,
    target: Path,
    backend: str,
    raw: bool,
    resize: int | None,
    quality: int | None,
    fail_on_error: bool,
    data_backend: str | None,
) -> int:
    """Write the dataset SOURCE in another format to TARGET, in the same order with the same labels.

    SOURCE is a path, or the name of a dataset with a manifest.
    Repeating the command continues a conversion that was stopped. The output is read again and
    compared before TARGET gets its name. If samples were left out, the exit code is that of a damaged
    dataset, 4.
    """
    from inferometer.client.api.progress import ProgressBar
    from inferometer.evaluators.conversion.convert import convert as converted
    from inferometer.evaluators.conversion.writers import Encoding
    from inferometer.evaluators.jobs.job import Progress

    encoding = Encoding(resize, quality, raw)
    with closing(_opened(source, data_backend)) as dataset, closing(ProgressBar("")) as bar:
        click.echo(f"source   {dataset.backend or source.suffix} of {len(dataset)} samples, {source}")

        def show(what: str, done: int, total: int) -> None:
            bar.title = what
            bar(Progress(done, total))

        done = converted(dataset, target, backend, encoding, fail_on_error=fail_on_error, on_progress=show)
    if done.resumed:
        click.echo(f"resumed  after {done.resumed} samples")
    for failure in done.failures:
        click.echo(f"left out {failure}", err=True)
    if done.failed > len(done.failures):
        click.echo(f"left out {done.failed - len(done.failures)} more", err=True)
    click.echo(f"written  {done.samples} samples, {done.payload_bytes} bytes, {done.failed} left out")
    click.echo(f"checked  sum {done.checksum.zfill(64)}")
    click.echo(f"target   {backend} at {done.path}")
    return EXIT_CODES[DatasetError] if done.failed else SUCCESS


@data.command(cls=Command)
@click.argument("path", type=FILE)
@_backend_option
def check(path: Path, data_backend: str | None) -> int:
    """Read and decode every sample of the dataset PATH, and report its contents.

    PATH may also be the name of a dataset with a manifest.
    Samples that fail are reported on stderr, and the exit code is then that of a damaged dataset, 4.
    """
    from inferometer.client.api.progress import ProgressBar
    from inferometer.evaluators.conversion.convert import check_dataset
    from inferometer.evaluators.jobs.job import Progress

    with closing(_opened(path, data_backend)) as dataset, closing(ProgressBar("checking")) as bar:
        found = check_dataset(dataset, lambda done, total: bar(Progress(done, total)))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.kinds.items())) or "none"
    for name, value in (
        ("format", found.backend or path.suffix),
        ("samples", found.samples),
        ("readable", kinds),
        ("labelled", f"{found.labelled} of {found.classes} classes"),
        ("bytes", found.payload_bytes),
        ("checked", _checked(found)),
        ("sum", found.checksum or "not known"),
        ("failed", found.failed),
    ):
        click.echo(f"{name:<9}{value}")
    for failure in found.failures:
        click.echo(f"failed   {failure}", err=True)
    if found.failed > len(found.failures):
        click.echo(f"failed   {found.failed - len(found.failures)} more", err=True)
    return EXIT_CODES[DatasetError] if found.failed else SUCCESS


def _checked(found: DatasetCheck) -> str:
    """Describes the checks of each sample, and the damage that they cannot detect."""
    read = found.samples - found.failed
    decoded = found.kinds.get("EncodedImage", 0)
    done = [f"decoded {decoded} images"] * bool(decoded) + [f"read {read - decoded} samples"] * (
        read > decoded
    )
    if not found.unprotected:
        return f"{' and '.join(done) or 'nothing'}, with their checksums"
    which = "the format has" if found.unprotected == read else f"{found.unprotected} of them have"
    return f"{' and '.join(done)}; {which} no checksum: damage that still decodes changes only the sum"


@data.command(cls=Command)
@click.argument("name")
@option(
    "--to",
    "folder",
    type=FILE,
    metavar="DIRECTORY",
    help="Destination.  [default: datasets/NAME of the cache]",
)
@option("--mirror", metavar="URL", help="Location of the same files, instead of their publisher's.")
def download(name: str, folder: Path | None, mirror: str | None) -> int:
    """Download the dataset NAME, check it, and report its location; `agent data list` shows the names."""
    from inferometer.evaluators.conversion.published import fetch, find_published
    from inferometer.evaluators.datasets.opening import open_path

    found = find_published(name)
    invocation = current_invocation()
    place = folder or invocation.cache_directory / "datasets" / found.name
    for path, downloaded in fetch(found, place, invocation.cache, mirror):
        state = "downloaded" if downloaded else "already there"
        click.echo(f"{state:<14}{path.stat().st_size:>13} bytes  {path}")
    for part, file in found.paths.items():
        with closing(open_path(place / file, "vision")) as dataset:
            click.echo(f"{part:<14}{len(dataset):>13} samples  {place / file}")
    return SUCCESS


@data.command(name="list", cls=Command)
@output_options
def list_datasets(**output: Any) -> None:
    """List the datasets that `agent data download` supports."""
    from inferometer.evaluators.conversion.published import PUBLISHED

    folder = current_invocation().cache_directory / "datasets"
    columns = (
        Column("name", "name", value="name"),
        Column("size_bytes", "bytes", value="size_bytes"),
        Column("is_downloaded", "downloaded"),
        Column("license", "license", wraps=True, value="license"),
        Column("url", "from", wraps=True, value="base_url"),
    )
    rows: list[Row] = [
        {
            **row_of(columns, each),
            "is_downloaded": all((folder / each.name / file).is_file() for file in each.files),
        }
        for each in PUBLISHED
    ]
    print_rows(columns, rows, **output)
