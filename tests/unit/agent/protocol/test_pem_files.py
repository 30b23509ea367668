"""Certificates and keys in files, read and verified."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Authority, CertificateFiles
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from inferometer.agent.protocol.pem_files import read_authorities, read_identity
from inferometer.manifests.errors import ConfigurationError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> CertificateFiles:
    return authority.issue("localhost")


def refusal(cert: Path, key: Path) -> str:
    with pytest.raises(ConfigurationError) as error:
        read_identity(cert, key)
    message = str(error.value)
    assert "\n" not in message
    assert "PRIVATE KEY" not in message
    return message


def test_certificate_and_key_are_given_as_they_are_and_the_key_is_not_shown(files: CertificateFiles) -> None:
    identity = read_identity(files.cert, files.key)
    assert (identity.chain, identity.key) == (files.cert.read_bytes(), files.key.read_bytes())
    assert "PRIVATE" not in repr(identity)


def test_one_file_may_hold_both(files: CertificateFiles, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    assert read_identity(both, both).chain == both.read_bytes()


@pytest.mark.parametrize("kind", ["elliptic", "rsa"])
def test_key_of_another_certificate_is_refused(
    authority: Authority, files: CertificateFiles, tmp_path: Path, kind: str
) -> None:
    other = authority.issue("localhost", file="other").key
    if kind == "rsa":
        other = tmp_path / "rsa.key"
        other.write_bytes(_pem(rsa.generate_private_key(65537, 2048)))
    assert refusal(files.cert, other) == f"tls_key {other}: is not the key of tls_cert {files.cert}"


def test_encrypted_key_is_refused_without_asking_for_its_passphrase(
    files: CertificateFiles, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(_pem(key, serialization.BestAvailableEncryption(b"x")))
    assert refusal(files.cert, encrypted).endswith("is encrypted; give a key without a passphrase")


@pytest.mark.parametrize("content", [b"", b"text\n", b"\x00\xff" * 99, b"-----BEGIN CERTIFICATE-----\nMII\n"])
def test_what_is_no_pem_is_refused(files: CertificateFiles, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.pem"
    path.write_bytes(content)
    assert refusal(path, files.key) == f"tls_cert {path}: holds no certificate in PEM"
    assert refusal(files.cert, path) == f"tls_key {path}: holds no private key in PEM"
    with pytest.raises(ConfigurationError, match=r"tls_ca .*: holds no certificate in PEM"):
        read_authorities(path)


def test_comments_may_be_in_any_script(files: CertificateFiles, tmp_path: Path) -> None:
    cert = tmp_path / "commented.pem"
    for comment in ("# Főtanúsítvány\n".encode(), b"Subject: O=Soci\xe9t\xe9\n"):
        cert.write_bytes(comment + files.cert.read_bytes() + comment)
        assert read_identity(cert, files.key).chain == cert.read_bytes()
        assert read_authorities(cert) == cert.read_bytes()


def test_byte_order_mark_that_tls_would_stumble_over_is_refused(
    files: CertificateFiles, tmp_path: Path
) -> None:
    marked = tmp_path / "marked.pem"
    marked.write_bytes(b"\xef\xbb\xbf" + files.cert.read_bytes())
    with pytest.raises(ConfigurationError, match="holds no certificate in PEM"):
        read_authorities(marked)


def test_half_a_certificate_and_half_a_key_are_refused(files: CertificateFiles, tmp_path: Path) -> None:
    cert, key = tmp_path / "half.pem", tmp_path / "half.key"
    cert.write_bytes(files.cert.read_bytes()[:300])
    key.write_bytes(files.key.read_bytes()[:100])
    assert "no certificate in PEM" in refusal(cert, files.key)
    assert "no private key in PEM" in refusal(files.cert, key)


def test_key_in_the_place_of_a_certificate_is_refused_and_not_shown(files: CertificateFiles) -> None:
    assert "no certificate in PEM" in refusal(files.key, files.cert)
    assert "no private key in PEM" in refusal(files.cert, files.cert)


def test_file_that_is_too_large_or_not_there_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    large = tmp_path / "large.pem"
    large.write_bytes(files.cert.read_bytes() * 2000)
    assert "larger than" in refusal(large, files.key)
    assert "No such file" in refusal(files.cert, tmp_path / "none")
    assert "Is a directory" in refusal(tmp_path, files.key)


def _pem(key: object, encryption: object = None) -> bytes:
    return key.private_bytes(  # type: ignore[attr-defined]  # of a private key of any kind
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )
