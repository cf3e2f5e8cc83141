"""Whether W&B's client has an account to send to."""

from __future__ import annotations


def has_account() -> bool:
    """Whether the client would find an API key, by its own rules, without asking for one or connecting.

    Raises wandb.errors.AuthenticationError for a key of the wrong form.
    """
    import wandb
    from wandb.sdk.lib import wbauth

    host = wandb.setup().settings.base_url
    auth = wbauth.authenticate_session(host=host, source="ampcompare", prompt=False, update_session=False)
    return auth is not None
