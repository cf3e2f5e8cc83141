"""Whether W&B itself wants a run to end: its page's button, hyperband, a sweep that was cancelled."""

from __future__ import annotations

from typing import Any

from ampcompare.wandb_client.service import gone

SECONDS = 1.5  # of the few that a run has to end

# The client's own poll learns of it with the answer to an upload, up to 15 s after the agent's SIGTERM. The
# fields are those that W&B's agent asks for; the first is the button's, the second the sweep's.
_QUERY = """
query RunStops($entity: String, $project: String, $run: String!) {
    project(name: $project, entityName: $entity) { run(name: $run) { stopped shouldStop } }
}
"""


def is_set(run: Any) -> bool | None:
    """What W&B's server says now of a run of its client; None if there is no answer in time.

    Raises one of `wandb_client.service.gone` where the client's service has ended.
    """
    if run.offline:
        return None
    from wandb.apis.public.service_api import ServiceApi, WandbApiFailedError

    named = {"entity": run.entity, "project": run.project, "run": run.id}
    try:
        answer: Any = ServiceApi(run.settings).execute_graphql(_QUERY, named, SECONDS)
    except (WandbApiFailedError, TimeoutError) as problem:
        if isinstance(problem.__context__, gone()):  # "the service process is not running"
            raise problem.__context__ from None
        return None
    flags = ((answer or {}).get("project") or {}).get("run") or {}
    return any(value is True for value in flags.values())
