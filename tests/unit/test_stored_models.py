"""Models of kinds from outside: what is stored of them is read again, or the kind is refused."""

import dataclasses
import datetime as dt
import math
import uuid
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    JsonValue,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    ValidationInfo,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from schema.export import ExportInput, ExportOptions
from schema.kinds import JobInput
from schema.stored_models import check_model, holds_plain_values, is_repeatable, stored_text

NO_JSON: Any = object()


class Coded:
    """A type that only its validator knows."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: value)


@dataclasses.dataclass
class Given:
    seed: dataclasses.InitVar[int]


@dataclasses.dataclass
class Derived:
    seed: int
    doubled: int = dataclasses.field(init=False, default=0)


class Plain(JobInput):
    title: str


class Hiding(JobInput):
    key: SecretStr


class Bytes(JobInput):
    model_config = ConfigDict(ser_json_bytes="base64")
    raw: bytes


class Unread(JobInput):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    size: int = Field(alias="Size")


class Node(JobInput):
    value: float = math.nan
    below: "Node | None" = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class HidingRoot(RootModel[SecretBytes]):
    pass


class Reserved(JobInput):
    """Fields with the names that nodes of a schema have."""

    type: str = ""
    default: int = Field(default=1, alias="serialization")
    metadata: SecretStr


def model(annotation: Any, default: Any = ..., *, base: type[BaseModel] = JobInput) -> Any:
    return create_model("Made", __base__=base, value=(annotation, default))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (model(SecretStr), "Made.value is a secret"),
        (model(SecretBytes | None, None), "Made.value is a secret"),
        (model(dict[str, Secret[int]]), "Made.value is a secret"),
        (model(list[Hiding]), "Hiding.key is a secret"),
        (model(Json[Hiding]), "Hiding.key is a secret"),
        (Reserved, "Reserved.metadata is a secret"),
        (HidingRoot, "HidingRoot is a secret"),
        (model(int, Field(default=0, exclude=True)), "Made.value is not stored"),
        (model(int, Field(exclude_if=bool)), "Made.value is not always stored"),
        (model(int, Field(default=0, exclude_if=bool)), "Made.value is not always stored"),
        (
            model(Any, Field(default=None, exclude_if=lambda value: value > 3)),
            "Made.value is not always stored",
        ),
        (model(Given), "Given.seed is not stored"),
        (model(Derived), "Derived.doubled is stored, and not read"),
        (
            model(int, Field(validation_alias="in", serialization_alias="out")),
            "Made.value is stored as 'out', and read from 'in'",
        ),
        (
            model(int, Field(validation_alias=AliasChoices("a", AliasPath("b", 0)))),
            r"Made.value is stored as 'value', and read from 'a' or \['b', 0\]",
        ),
        (model(int, Field(serialization_alias="out")), "stored as 'out', and read from 'value'"),
        (Unread, "Unread.size is stored as 'Size', and read from 'size'"),
        (model(float, math.inf), "Made.value has the default inf, of which null is stored"),
        (model(float | None, -math.inf), "of which null is stored"),
        (model(list[float], [math.nan]), r"a default that it does not read: \[null\]"),
        (Node, "Node.value has the default nan"),
        (
            model(int, None),
            "a default that it does not read: null: Input should be",
        ),
        (model(int, Field(default=-1, ge=0)), "a default that it does not read: -1"),
        (model(Any, object()), "a default that cannot be stored"),
        (BaseModel, "BaseModel has no JSON schema"),
        (Bytes, "Bytes.raw is written as base64 and read as utf8"),
        (model(Coded), "Made has no JSON schema: PydanticInvalidForJsonSchema"),
        (model(int, Field(json_schema_extra={"no": NO_JSON})), "Made has no JSON schema"),
        (model("Nowhere"), "Made has no JSON schema: PydanticUserError"),
    ],
)
def test_a_model_that_does_not_read_what_is_stored_of_it_is_refused_at_its_field(
    refused: type[BaseModel], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        check_model(refused)


class Named(NamedTuple):
    first: int
    second: str = "x"


class Sub(JobInput):
    size: int = Field(default=1, alias="Size")


class Everything(JobInput):
    model_config = ConfigDict(validate_by_name=True)
    area: Json[list[int]]
    both: int = Field(validation_alias=AliasChoices("Both", "both"))
    camel: int = Field(alias="Camel")
    renamed: int = Field(default=3, serialization_alias="renamed", validation_alias="Renamed")
    tags: frozenset[str] = frozenset()
    raw: Base64Bytes = b"eA=="
    since: dt.date = dt.date(2020, 1, 1)
    named: Named = Named(1)
    sub: Sub = Sub()
    subs: list[Sub] = Field(default_factory=list)
    given: uuid.UUID = Field(default_factory=uuid.uuid4)
    start: int = 0
    end: int = 1
    shown: SecretStr = SecretStr("shown")
    told: Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value)] = SecretStr("told")
    skipped: int | None = Field(default=None, exclude_if=lambda value: value is None)
    bare: list[int] = Field(default_factory=list, exclude_if=lambda value: not value)

    @computed_field
    def twice(self) -> int:
        return 2 * self.camel

    @field_serializer("shown", "start")
    def show(self, value: Any) -> Any:
        return value.get_secret_value() if isinstance(value, SecretStr) else value

    @field_validator("end")
    @classmethod
    def lies_behind(cls, value: int, info: ValidationInfo) -> int:
        if value <= info.data["start"]:
            raise ValueError("must lie behind the start")
        return value


def test_what_is_stored_of_a_model_is_read_as_it_was() -> None:
    check_model(Everything)
    given = Everything.model_validate_json(
        '{"area":"[1]","Both":1,"Camel":2,"sub":{"Size":5},"shown":"a","told":"b","start":-3}'
    )
    stored = stored_text(given.__pydantic_serializer__, given)
    assert Everything.model_validate_json(stored) == given
    assert given.shown.get_secret_value() == "a"


@pytest.mark.parametrize("sound", [Plain, ExportInput, ExportOptions, JobInput])
def test_models_with_nothing_unusual_are_sound(sound: type[BaseModel]) -> None:
    check_model(sound)
    assert is_repeatable(sound) is (sound is not ExportOptions)


class Stamped(JobInput):
    at: str = ""

    @model_validator(mode="before")
    @classmethod
    def stamp(cls, document: Any) -> Any:
        return {"at": str(uuid.uuid4())} | document


@lru_cache
def _even(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("varying", "is_so"),
    [
        (model(int, 1), False),
        (model(list[int], Field(default_factory=list)), False),
        (model(Annotated[int, AfterValidator(_even)]), False),
        (model(str, Field(default_factory=lambda: "now")), True),
        (model(set[str]), True),
        (model(list[frozenset[str]]), True),
        (model(dict[str, int]), True),
        (model(JsonValue), True),
        (model(int, base=Open), True),
        (model(Annotated[int, AfterValidator(lambda value: value)]), True),
        (model(list[Stamped]), True),
    ],
)
def test_a_model_repeats_itself_unless_something_in_it_may_vary(
    varying: type[BaseModel], *, is_so: bool
) -> None:
    assert is_repeatable(varying) is not is_so


class Afterwards(JobInput):
    at: str = ""
    more: str = ""

    @model_validator(mode="after")
    def check(self) -> Self:
        return self


class Lax(JobInput):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    at: str


SMALL = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class Leaning(BaseModel):
    n: Annotated[int, Field(ge=0, le=9)] = 0


class Inclined(BaseModel):
    is_so: bool = False


class Choosy(JobInput):
    a: SMALL = 0
    b: SMALL = Field(default=0, validation_alias=AliasChoices("b", "a"))


class Twice(JobInput):
    a: SMALL = 0
    b: SMALL = Field(default=0, validation_alias="a")


class Aliased(JobInput):
    a: SMALL = Field(default=0, alias="b")


@pytest.mark.parametrize(
    ("of", "is_so"),
    [
        (ExportInput, True),
        (model(str), True),
        (model(str | None, None), True),
        (model(Literal["a", 1], "a"), True),
        (model(bool), True),
        (model(SMALL), True),
        (model(Annotated[SMALL, AfterValidator(_even)]), True),
        (model(Annotated[int, Field(ge=0)]), False),
        (model(Annotated[int, Field(ge=0, le=2**63)]), False),
        (model(int), False),
        (model(float), False),
        (model(list[str]), False),
        (model(JsonValue), False),
        (model(Sub), False),
        (model(str, base=Open), False),
        (model(Annotated[str, AfterValidator(lambda value: value)]), False),
        (Afterwards, False),
        (Stamped, False),
        (Lax, False),
        (Leaning, False),
        (Inclined, False),
        (Choosy, False),
        (Twice, False),
        (Aliased, True),
        (RootModel[str], False),
    ],
)
def test_values_are_plain_if_none_has_levels_or_is_beyond_64_bits(
    of: type[BaseModel], *, is_so: bool
) -> None:
    assert holds_plain_values(of) is is_so
