"""The HTTP API as a client sees it, with the standard library alone."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

_TIMEOUT_SECONDS = 30


class ApiError(Exception):
    """The API refused a request or did not answer; the message says what it said."""


class Client:
    """Calls one API with one key."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        # No proxy: http_proxy may be set, and it cannot reach our loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def submit(
        self,
        inputs: Sequence[Mapping[str, object]],
        *,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """Submit an export job and return its id."""
        job = {"kind": "export", "options": options or {}, "inputs": list(inputs)}
        return str(self._call("/jobs", job)["jobId"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as the API shows it."""
        return self._call(f"/jobs/{job_id}", None)

    def first_input(self, job_id: str) -> dict[str, Any]:
        """The first input of a job, however large the job is."""
        first: dict[str, Any] = self._call(f"/jobs/{job_id}/inputs?pageSize=1", None)["items"][0]
        return first

    def _call(self, path: str, body: object) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path)  # noqa: S310 the URL is our own
        request.add_header("Authorization", f"Bearer {self._key}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise ApiError(f"{request.get_method()} {path}: {error.code} {said}") from error
        except (OSError, ValueError) as error:
            raise ApiError(f"{request.get_method()} {path}: {error}") from error
        assert isinstance(content, dict)
        return content
