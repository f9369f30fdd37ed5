"""The route that takes right labels, which decide about a canary."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from redhost_serve.admin import require_token
from redhost_serve.problems import HttpProblem
from redhost_serve.reply import body, reply, request_body_for, responses_for
from redhost_serve.service import Service
from redhost_serve.trial import Labelled, ScoredAnswer
from redhost_serve.wire import Feedback, FeedbackReply, Scored

__all__ = ["feedback_routes"]


def feedback_routes(service: Service, *, token: str) -> APIRouter:
    """Return the routes.

    Args:
        service: The service whose generations are scored.
        token: The secret that a caller must send: labels decide what is served.
    """
    routes = APIRouter(tags=["feedback"])

    async def feedback(request: Request) -> Response:
        """Score the served generation and the canary against the right labels of texts."""
        require_token(request, token)
        wanted = await body(request, Feedback)
        if len(wanted.texts) != len(wanted.labels):
            found = f"{len(wanted.texts)} texts, {len(wanted.labels)} labels"
            raise HttpProblem(400, f"expected a label for each text, found {found}")
        answering = service.of_question(wanted.question)
        labelled = map(Labelled, wanted.texts, wanted.labels)
        production, *canary = zip(*await answering.feedback([*labelled]), strict=True)
        return reply(
            FeedbackReply(
                production=_scored(production),
                canary=_scored(*canary) if canary else None,
            )
        )

    routes.add_api_route(
        "/v1/feedback",
        feedback,
        methods=["POST"],
        responses=responses_for(FeedbackReply, 400, 401, 404, 503),
        openapi_extra={**request_body_for(Feedback), "security": [{"token": []}]},
    )
    return routes


def _scored(scored: Sequence[ScoredAnswer]) -> Scored:
    right = sum(x.right for x in scored)
    return Scored(generation=scored[0].answer.generation, right=right, texts=len(scored))
