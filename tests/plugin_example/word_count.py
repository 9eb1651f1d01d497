"""Counts words, one input at a time: HAULAGE_KINDS=tests.plugin_example.word_count:WORD_COUNT."""

from pydantic import Field

from consumer.processors.protocol import Resources, Work
from schema.errors import InvalidInput, Misconfigured, NotFound, Skip
from schema.kinds import JobInput, JobOptions, Kind
from schema.outcome import Backoff, Outcome, Succeeded

LIBRARY = {"haiku": "an old silent pond\na frog jumps into the pond", "blank": ""}


class WordCountInput(JobInput):
    title: str = Field(min_length=1, max_length=100)


class WordCountOptions(JobOptions):
    longer_than: int = Field(default=0, ge=0, le=100)


class WordCountProcessor:
    def __init__(self, resources: Resources) -> None:
        """Take what is needed from the consumer: settings, database, storage. Do not wait here."""
        self._text_of: dict[str, str] | None = None

    async def start(self) -> None:
        """Check once what must hold before any work; raising ``Misconfigured`` ends the process."""
        if not LIBRARY:
            raise Misconfigured("the library is empty: there is nothing to count")
        self._text_of = LIBRARY

    async def close(self) -> None:
        """Give back what was opened."""
        self._text_of = None

    async def process(self, work: Work) -> Outcome:
        """Count the words of one text. Raise what came of it, or return it."""
        if not isinstance(work.body, WordCountInput):
            raise InvalidInput("not an input of kind word-count")
        if not isinstance(work.options, WordCountOptions):
            raise InvalidInput("not the options of kind word-count")
        assert self._text_of is not None, "start runs before any work"
        text = self._text_of.get(work.body.title)
        if text is None:
            raise NotFound(f"no text has the title {work.body.title!r}")
        if not text:
            raise Skip("the text is empty")
        words = [word for word in text.split() if len(word) > work.options.longer_than]
        return Succeeded({"words": len(words)})


WORD_COUNT = Kind(
    name="word-count",
    input_model=WordCountInput,
    options_model=WordCountOptions,
    processor="tests.plugin_example.word_count:WordCountProcessor",
    backoff=Backoff(base_seconds=1.0, cap_seconds=60.0),
    max_attempts=3,
)
