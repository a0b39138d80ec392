"""Models in service: JSON over HTTP for programs, a page for people, and Annif's contract (docs/serving.md).

It needs the extra `serve`: pip install 'xmlpreck[serve]'.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmlpreck.config import InputError
from xmlpreck.serve.settings import ServeLimits, ServeSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger("xmlpreck")
__all__ = ["ServeLimits", "ServeSettings", "create_app", "run"]


def run(
    models: str | Path | Sequence[str | Path],
    *,
    note: Callable[[str], None] = log.info,
    ready: Callable[[str], None] | None = None,
    limits: ServeLimits | None = None,
    **settings: Any,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C: folders, or NAME=FOLDER.

    `settings` are those of ServeSettings: host, port, workers, token_file, ... `ready` is called with the address once
    requests are answered. A new version of a model in its folder is taken without a pause.
    """
    _need_packages()
    from xmlpreck.serve.supervisor import supervise

    given = ServeSettings(limits=limits or ServeLimits(), **settings)
    supervise([models] if isinstance(models, str | Path) else models, given, note, ready)


def create_app(
    models: str | Path | Sequence[str | Path], limits: ServeLimits | None = None, token_file: str | Path | None = None
) -> "ASGIApp":
    """Return the server as an ASGI application, to run in a server of your own: models are loaded once."""
    _need_packages()
    from xmlpreck.serve import app, counters, served, settings, state

    folders = served.name_models([models] if isinstance(models, str | Path) else models)
    loaded = {name: served.load_served(folder, name) for name, folder in folders.items()}
    token = settings.read_token(token_file)
    return app.create_app(state.State(loaded, limits or ServeLimits(), counters.Counters(1), token))


def _need_packages() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("serving needs Starlette and uvicorn: pip install 'xmlpreck[serve]'") from None
