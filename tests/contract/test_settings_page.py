"""docs/settings.md names every setting, with the default and the range that the code has."""

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from infra.settings import _OWN_NAMES, PREFIX, Settings

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "settings.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| ([^|]*) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def default(about: FieldInfo) -> str:
    if about.default is PydanticUndefined:
        return "required"
    if about.default is None or about.default == "":
        return ""
    if isinstance(about.default, bool):
        return str(about.default).lower()
    return f"{about.default}"


def allowed(about: FieldInfo) -> str:
    """What a value must be, as the page says it: 1 to 10, above 0, to 10, one of a few words."""
    if get_origin(about.annotation) is Literal:
        return ", ".join(get_args(about.annotation))
    if about.annotation is bool:
        return "true, false"
    low = high = ""
    for bound in about.metadata:
        if isinstance(bound, Ge):
            low = f"{bound.ge}"
        elif isinstance(bound, Gt):
            low = f"above {bound.gt},"
        elif isinstance(bound, Le):
            high = f" to {bound.le}"
    return f"{low}{high}" if high or not low else f"{low} or more"


def test_the_page_names_every_setting_with_its_default_and_its_range() -> None:
    names = {field: name for name, field in _OWN_NAMES.items()}
    expected = {
        names.get(field, PREFIX + field.upper()): (default(about), allowed(about))
        for field, about in Settings.model_fields.items()
    }
    rows = ROW.findall(PAGE.read_text())
    assert {name: (default, range_) for name, default, range_, _ in rows} == expected
    assert all(len(meaning.strip()) > 10 for *_, meaning in rows)
