"""The part of the OpenAPI document on the stories of jobs."""

from __future__ import annotations

from api import story_models as models
from api.openapi_shared import Json, operation

STORY_ANSWERS = (models.Timeline, models.Correlation)


def story_paths() -> Json:
    """Describe these operations."""
    timeline = operation(
        "showTimeline",
        "Tell what happened to a job, or to one input of it",
        ("200", "Timeline", "A page, in order of time"),
        "jobId inputOrdinal pageSize after",
        "400 404",
    )
    correlation = operation(
        "showCorrelation",
        "Tell what happened to all jobs of a correlation id",
        ("200", "Correlation", "A page, job by job, each in order of time"),
        "correlation pageSize after",
        "400 404",
    )
    return {
        "/jobs/{jobId}/timeline": {"get": timeline},
        "/correlations/{correlationId}": {"get": correlation},
    }
