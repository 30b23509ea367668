"""A real browser for the session, and axe-core; without them, tests are skipped with the reason."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.webdriver import Browser, missing_programs
from tests.page_samples import keep, samples

AXE = "axe-core@4.14.1"
_NPM_S = 60


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """The browser."""
    if reason := missing_programs():
        pytest.skip(reason)
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The browser, which tells at the end of the test whether a script failed or the policy refused one."""
    window.look()
    window.requests()
    window.complaints()
    yield window
    # a status of 404 is one that a test asks for; the page shows what it means
    assert [each for each in window.complaints() if "Failed to load resource" not in each] == []


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """The script of axe-core, which npm gets once; it is in no file of the project."""
    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir(AXE.replace("@", "-"))
    script = folder / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.skip("no npm, which gets axe-core")
        command = ["npm", "pack", AXE, "--silent", "--pack-destination", str(folder)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_NPM_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm does not get {AXE} in {_NPM_S} s")
        if done.returncode:
            pytest.skip(f"npm cannot get {AXE}: {done.stderr.strip()[-200:]}")
        (packed,) = folder.glob("*.tgz")
        with tarfile.open(packed) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            script.write_bytes(member.read())
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with evaluations of every kind."""
    folder = tmp_path_factory.mktemp("browser")
    keep(folder, samples())
    return folder


@pytest.fixture(scope="session")
def report_url(data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a report on all of them."""
    from inferometer.client.cli.main import run

    file = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_DATA_DIR", str(data))
        patch.setenv("XDG_CONFIG_HOME", str(data))
        assert run(["report", "-o", str(file), "--include_interrupted", "--compared=20"]) == 0
    return file.as_uri()
