"""W&B's client apart from its records (wandb 0.31): account, errors of its API, service process."""

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from http.client import responses

from ampcompare.errors import UserError, reason

log = logging.getLogger(__name__)

SERVICE_SECONDS = 15.0  # for the end of the service, which normally takes 0.1 s
SLOW_SECONDS = 10.0  # what takes longer is reported
# The start of a page that came instead of an answer.
_PAGE = re.compile(r'(: )?(<!doctype|<html|\{")', re.IGNORECASE)


def has_account() -> bool:
    """Return whether the client would find an API key, without asking for one or connecting.

    Raises:
        UserError: The key has the wrong form.
    """
    import wandb
    from wandb.sdk.lib.wbauth import authenticate_session

    host = wandb.setup().settings.base_url
    try:
        key = authenticate_session(host=host, source="ampcompare", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as problem:
        raise UserError(
            f"W&B credentials: {reason(problem)}; correct them, or record offline with wandb.mode=offline "
            "(WANDB_MODE=offline)"
        ) from None
    return key is not None


def service_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the client raises after its service process has ended."""
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return ConnectionError, MailboxClosedError, HandleAbandonedError


def end_service(seconds: float = SERVICE_SECONDS) -> bool:
    """Tear W&B's client down and return whether its service process has ended.

    `wandb.teardown` waits without limit: with an unreachable server the service did not end in 1 of 10 tries.
    A service that is left running ends when this process does.

    Args:
        seconds: The longest wait.
    """
    import wandb

    def tear_down() -> None:
        with contextlib.suppress(*service_errors()):  # it had ended before
            wandb.teardown()

    # A daemon thread, so that neither the wait nor W&B's own exit hook delays the exit of this process.
    waiting = threading.Thread(target=tear_down, daemon=True, name="wandb.teardown")
    try:
        waiting.start()
    except RuntimeError:  # Python is exiting; from 3.12 on it starts no threads then
        return False
    waiting.join(seconds)
    return not waiting.is_alive()


@contextlib.contextmanager
def warn_if_slow(what: str) -> Iterator[None]:
    """Warn once if the body takes long; the client retries without a message.

    Args:
        what: What is waited for, as in `waiting for WHAT ...`.
    """
    timer = threading.Timer(SLOW_SECONDS, log.warning, [f"waiting for {what} ..."])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # as above
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def api_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of W&B's public API, for `except`.

    Some of its calls convert exceptions of their transport into W&B's own.
    """
    import requests
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    return wandb.errors.Error, WandbApiFailedError, requests.RequestException, TimeoutError, *service_errors()


def api_reason(problem: BaseException) -> str:
    """Return the reason of an error, as `errors.reason`.

    If the error quotes a page of HTML or JSON, the HTTP status replaces the page.
    """
    text = reason(problem)
    page = _PAGE.search(text)
    if page is None:
        return text
    before_page = text[: page.start()]
    status = next(filter(None, map(_status, _chain(problem))), 0)
    number = f"HTTP {status} {responses.get(status, '')}".rstrip() if status else ""
    known = [part for part in (before_page, number) if part]
    return ": ".join(known) if known else "the answer does not come from W&B"


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _status(problem: BaseException) -> int:
    number = getattr(getattr(problem, "response", None), "http_status", 0)
    return number if isinstance(number, int) else 0


def skip_pandas_import() -> None:
    """Let W&B recognise pandas tables by the name of their type, as without pandas.

    Otherwise it loads pandas for each value that is a list or None, to ask whether the value is a table
    (wandb 0.31: `util.is_pandas_data_frame`). This takes 0.3 s of CPU time in every run.
    """
    import wandb.util

    if hasattr(wandb.util, "pd_available"):
        wandb.util.pd_available = False
