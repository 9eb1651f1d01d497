"""The ``export`` kind: the rows of one (indexKey, effectiveDate, asofindicator) become a file."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from schema.chunking import ChunkBounds
from schema.kinds import JobInput, JobOptions, Kind

# These parts become an object key: the alphabet leaves no way out of the prefix, and with no
# underscore in the indicator the joined name can be read in one way only.
IndexKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
AsOfIndicator = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,31}$")]


@lru_cache(maxsize=1_024)
def _calendar_date(value: int) -> int:
    # Many inputs share few dates, and this is the one check of an input that is not compiled.
    try:
        dt.date(value // 10_000, value // 100 % 100, value % 100)
    except ValueError as error:
        raise PydanticCustomError(
            "calendar_date", "{value} is not a calendar date as YYYYMMDD", {"value": value}
        ) from error
    return value


CalendarDate = Annotated[int, Field(ge=1_000_101, le=99_991_231), AfterValidator(_calendar_date)]


class ExportInput(JobInput):
    """One file to make: index key, effective date as YYYYMMDD, and as-of indicator."""

    indexKey: IndexKey = Field(examples=["MSFT"])  # noqa: N815 - the contract's spelling
    effectiveDate: CalendarDate = Field(  # noqa: N815 - the contract's spelling
        description="A calendar date as YYYYMMDD", examples=[20240202]
    )
    asofindicator: AsOfIndicator = Field(examples=["CLS"])

    def date(self) -> dt.date:
        """Give the effective date as a date."""
        value = self.effectiveDate
        return dt.date(value // 10_000, value // 100 % 100, value % 100)

    def natural_key(self) -> str:
        """Name the file within its owner."""
        return f"{self.indexKey}_{self.effectiveDate}_{self.asofindicator}"


class ReuseOptions(BaseModel):
    """Whether an earlier file may serve, and from what age of the effective date on."""

    model_config = JobOptions.model_config

    enabled: bool | None = Field(default=None, description="Default: the server's setting")
    days: Annotated[int, Field(ge=0, le=36_500)] | None = Field(
        default=None,
        description="An effective date younger than this many days is always generated anew",
    )


class ExportOptions(JobOptions):
    """Options of an export job."""

    reuse: ReuseOptions = Field(default_factory=ReuseOptions)


EXPORT = Kind(
    name="export",
    input_model=ExportInput,
    options_model=ExportOptions,
    processor="consumer.processors.export:ExportProcessor",
    chunk=ChunkBounds(minimum=1, maximum=100, target_slice_ms=1_000.0),
)
