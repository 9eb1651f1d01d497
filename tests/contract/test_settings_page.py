"""docs/settings.md names every setting, with the default that the code has."""

import re
from pathlib import Path

from pydantic_core import PydanticUndefined

from infra.settings import _OWN_NAMES, PREFIX, Settings

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "settings.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def shown(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "":
        return ""
    return str(default).lower() if isinstance(default, bool) else f"{default}"


def test_the_page_names_every_setting_with_its_default() -> None:
    names = {field: name for name, field in _OWN_NAMES.items()}
    expected = {
        names.get(field, PREFIX + field.upper()): shown(about.default)
        for field, about in Settings.model_fields.items()
    }
    rows = ROW.findall(PAGE.read_text())
    assert {name: default.strip() for name, default, _ in rows} == expected
    assert all(len(meaning.strip()) > 10 for _, _, meaning in rows)
