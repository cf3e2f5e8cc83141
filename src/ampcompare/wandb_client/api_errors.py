"""What W&B's public API raises where its server cannot be asked or says no, and why (wandb 0.31)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import responses

from ampcompare.errors import reason
from ampcompare.wandb_client.service import gone

_PAGE = re.compile(r'(: )?(<!doctype|<html|\{")', re.IGNORECASE)  # how an answer that was no answer begins


def api_errors() -> tuple[type[Exception], ...]:
    """The classes, for `except`. Some of its calls turn what their transport raises into W&B's own."""
    import requests
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    return wandb.errors.Error, WandbApiFailedError, requests.RequestException, TimeoutError, *gone()


def api_reason(problem: BaseException) -> str:
    """Why, as `errors.reason`; in place of a page of HTML or JSON in it the number that came with that."""
    text = reason(problem)
    page = _PAGE.search(text)
    if page is None:
        return text
    status = next(filter(None, map(_status, _chain(problem))), 0)
    number = f"HTTP {status} {responses.get(status, '')}".rstrip() if status else ""
    return ": ".join(filter(None, (text[: page.start()], number))) or "an answer that is none of W&B's"


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _status(problem: BaseException) -> int:
    number = getattr(getattr(problem, "response", None), "http_status", 0)
    return number if isinstance(number, int) else 0
