"""What was in an archive, where it was unpacked: each file is checked whenever it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent.addresses import shown
from agent.checksums import SHA256, CheckedFile, digests, mismatch
from agent.file_locations import is_file
from manifests.errors import ArtifactError, suggestion


def write_record(record: Path, archive: Path, sums: Mapping[str, str]) -> None:
    """Writes down what was unpacked: the SHA-256 of each file by its path in the archive.

    Raises:
        OSError: It cannot be written.
    """
    record.write_text(json.dumps({"archive": str(archive), "files": dict(sums)}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class UnpackedArchive:
    """What is in an archive.

    Attributes:
        archive: The archive.
        folder: Where it is unpacked.
        sums: The SHA-256 of each file when it was unpacked, in hexadecimal, by its path in the archive.
    """

    archive: Path
    folder: Path
    sums: Mapping[str, str]

    @classmethod
    def read(cls, archive: Path, folder: Path, record: Path) -> UnpackedArchive:
        """Reads the sums that were written when it was unpacked.

        Raises:
            ArtifactError: They are not there any more.
        """
        try:
            sums = json.loads(record.read_text(encoding="utf-8"))["files"]
            if not isinstance(sums, dict):
                raise TypeError(f"files is {type(sums).__name__}")
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ArtifactError(
                f"{record}: is changed or missing; remove it and {folder}, and {archive} is unpacked again"
            ) from error
        return cls(archive, folder, sums)

    def file(self, path: str, checksum: str, source: object) -> CheckedFile:
        """Returns one of the files.

        Args:
            path: Its path in the archive.
            checksum: What it must have.
            source: What says so, for the error.

        Raises:
            ArtifactError: There is none, or it was changed since, or it is not the one that is meant.
        """
        name = str(PurePosixPath(path))
        if name not in self.sums:
            raise ArtifactError(f'{self.archive}: holds no "{shown(path)}"; {suggestion(name, self.sums)}')
        unpacked = self.folder / name
        if not is_file(unpacked):
            raise ArtifactError(
                f"{unpacked}: is missing; remove {self.folder}, and {self.archive} is unpacked again"
            )
        found = digests(unpacked, checksum)
        if found[SHA256] != self.sums[name]:
            raise ArtifactError(
                f"{unpacked}: is changed or truncated since it was unpacked; remove {self.folder}, and "
                f"{self.archive} is unpacked again"
            )
        if difference := mismatch(found, checksum, source):
            raise ArtifactError(
                f'{self.archive}: its "{shown(path)}" is not the file that is meant: {difference}'
            )
        return CheckedFile(unpacked, found[SHA256])
