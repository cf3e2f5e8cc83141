"""W&B's client beside its record (wandb 0.31): whether it has an account, what its API raises where the
server cannot be asked or says no, the service process that it starts beside ours.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from http.client import responses

from ampcompare.errors import UserError, reason

log = logging.getLogger(__name__)

SERVICE_SECONDS = 15.0  # for the end of the service, which takes 0.1 s where nothing is wrong
SILENT_SECONDS = 10.0  # what takes longer is said
_PAGE = re.compile(r'(: )?(<!doctype|<html|\{")', re.IGNORECASE)  # how an answer that was no answer begins


def has_account() -> bool:
    """Whether the client would find an API key, by its own rules, without asking for one or connecting.

    Raises UserError for a key of the wrong form.
    """
    import wandb
    from wandb.sdk.lib.wbauth import authenticate_session

    host = wandb.setup().settings.base_url
    try:
        found = authenticate_session(host=host, source="ampcompare", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as problem:
        what = f"W&B credentials: {reason(problem)}"
        raise UserError(f"{what}; mend them or set wandb.mode=offline (WANDB_MODE=offline)") from None
    return found is not None


def service_errors() -> tuple[type[Exception], ...]:
    """What the client raises where its service has ended: as it sends, and as it waits."""
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return ConnectionError, MailboxClosedError, HandleAbandonedError


def end_service(seconds: float = SERVICE_SECONDS) -> bool:
    """Tear W&B's client down, waiting so long at most; returns whether its service has ended.

    `wandb.teardown` waits without limit, and where the server cannot be reached the service did not end in 1
    of 10 tries. What is left behind ends by itself when this process does.
    """
    import wandb

    def tear_down() -> None:
        with contextlib.suppress(*service_errors()):  # it had ended before
            wandb.teardown()

    # A daemon: neither the waiting nor W&B's own exit hook, taken off by then, holds up our exit.
    waiting = threading.Thread(target=tear_down, daemon=True, name="wandb.teardown")
    try:
        waiting.start()
    except RuntimeError:  # Python ends already: from 3.12 on it begins no threads then
        return False
    waiting.join(seconds)
    return not waiting.is_alive()


@contextlib.contextmanager
def warn_if_slow(what: str) -> Iterator[None]:
    """While entered, what is waited for is said once where it takes long: the client retries in silence."""
    timer = threading.Timer(SILENT_SECONDS, log.warning, [f"waiting for {what} ..."])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python ends already: likewise
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def api_errors() -> tuple[type[Exception], ...]:
    """What W&B's public API raises, for `except`. Some of its calls turn what their transport raises into
    W&B's own.
    """
    import requests
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    return wandb.errors.Error, WandbApiFailedError, requests.RequestException, TimeoutError, *service_errors()


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


def skip_pandas_import() -> None:
    """Tell tables of pandas by the name of their type, as the client does where pandas is not installed.

    For a value that is a list or None it loads pandas otherwise (wandb 0.31: `util.is_pandas_data_frame`),
    0.3 s of CPU time in every run, to ask whether it is one.
    """
    import wandb.util

    if hasattr(wandb.util, "pd_available"):
        wandb.util.pd_available = False
