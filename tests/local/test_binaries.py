"""What another account must read, whatever our umask: root runs PostgreSQL as somebody else."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localstack.binaries import Server, enterable_folder, readable_server
from localstack.processes import Account

NOBODY = Account("nobody", 65_534, 65_534)


@pytest.fixture(autouse=True)
def _closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_server_that_others_cannot_read_is_copied_so_that_they_can(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "server"
    program = package / "install" / "bin" / "postgres"
    others = [
        package / "install" / "share" / "postgres.bki",
        package.with_name("server.libs") / "a",
    ]
    for file in (program, *others):
        file.parent.mkdir(parents=True)
        file.touch()
    program.chmod(0o700)
    shared = tmp_path / "missing" / "shared"
    copied = readable_server(Server(program.parent, "18.1"), NOBODY, shared)
    assert Path(copied.program("postgres")).stat().st_mode & 0o777 == 0o755
    made = list(shared.rglob("*"))
    assert {path.name for path in made} >= {"postgres.bki", "a"}
    assert {path.stat().st_mode & 0o777 for path in [shared, *made] if path.is_dir()} == {0o755}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in made)


def test_a_copy_that_an_earlier_release_left_closed_is_opened(tmp_path: Path) -> None:
    install = tmp_path / "site-packages" / "server" / "install"
    (install / "bin").mkdir(parents=True)
    left = tmp_path / "shared" / "postgres-18.1" / "server" / "install" / "bin"
    left.mkdir(parents=True)
    copied = readable_server(Server(install / "bin", "18.1"), NOBODY, tmp_path / "shared")
    assert copied.folder == left
    for folder in (left, *list(left.parents)[:4]):
        assert folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_is_yet_to_be_made_counts_as_closed_as_it_will_be(
    short_folder: Path, tmp_path: Path
) -> None:
    home = short_folder / "missing" / "home"
    shared = tmp_path / "shared"
    found = enterable_folder(home, NOBODY, shared)
    assert found.parent == shared
    assert shared.stat().st_mode & 0o777 == 0o755
    shared.chmod(0o700)
    assert enterable_folder(home, NOBODY, shared) == found == home.resolve()
    assert shared.stat().st_mode & 0o777 == 0o755
    os.umask(0o022)
    assert enterable_folder(short_folder / "open" / "home", NOBODY, shared).name == "home"
    assert enterable_folder(tmp_path / "home", None, shared) == tmp_path / "home"
