"""Small request bodies: an object of a few members, checked against its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from api.bodies import BodyReader
from api.problems import BadFields
from api.strict_json import Source

if TYPE_CHECKING:
    from starlette.requests import Request

# Ten thousand ordinals, however they are laid out.
_MAX_BYTES = 256 * 1024
_DEPTH = 4
_LARGE_AT_ONCE = 4

Model = TypeVar("Model", bound=BaseModel)


class FieldsReader:
    """Reads such bodies; none at all is an empty object."""

    def __init__(self) -> None:
        self._bodies = BodyReader(max_body_bytes=_MAX_BYTES, max_concurrent_large=_LARGE_AT_ONCE)

    async def read(self, request: Request, model: type[Model]) -> Model:
        """Give the body as the model has it; raise the problem that names all that is wrong."""
        async with self._bodies.body(request, may_be_absent=True) as body:
            return read_fields(body.file.read() or b"{}", model)


def read_fields(body: bytes, model: type[Model]) -> Model:
    """Read a body; raise the ``Problem`` that names everything wrong with it."""
    source, bad = Source(body), BadFields()
    document, text = source.value("", bad, limit=_MAX_BYTES, depth=_DEPTH)
    if source.peek():
        raise source.not_json("nothing may follow the object")
    if not isinstance(document, dict):
        bad.add("", "the body must be a JSON object")
    if bad.count:
        raise bad.problem()
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        bad.add_validation(error, "", document, what="this request")
        raise bad.problem() from None
