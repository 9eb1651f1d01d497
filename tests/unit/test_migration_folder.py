"""Where the migrations lie."""

import shutil
import subprocess
import sys
from pathlib import Path

from infra.migrate import head

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_per_cent_sign_in_the_path_of_the_checkout_is_none_of_a_template(tmp_path: Path) -> None:
    elsewhere = tmp_path / "50% (copy)"
    for folder in ("infra", "schema"):
        shutil.copytree(CHECKOUT / folder, elsewhere / folder)
    script = "from infra.migrate import head; print(head())"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == head()
