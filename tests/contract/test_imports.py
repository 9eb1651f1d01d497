"""The tree: who may import whom, and that no installed distribution takes our names."""

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent


def test_no_installed_distribution_provides_one_of_our_top_level_packages() -> None:
    ours = {"api", "schema", "consumer", "dispatcher", "infra"}
    assert not ours & set(packages_distributions())


def test_processes_import_infra_and_schema_and_never_each_other() -> None:
    checked = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_importing_a_process_does_nothing(tmp_path: Path) -> None:
    """No engine, client, thread or setting may come to life by an import alone."""
    code = (
        "import threading, api.__main__, consumer.__main__, dispatcher.__main__;"
        "assert threading.active_count() == 1"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=CHECKOUT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_file_grows_past_400_lines() -> None:
    long = {
        str(path.relative_to(CHECKOUT)): lines
        for folder in ("api", "consumer", "dispatcher", "infra", "schema", "localstack", "tests")
        for path in (CHECKOUT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
