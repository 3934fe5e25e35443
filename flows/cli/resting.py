"""What the commands on scene and persona files may show of them.

The files on disk keep what was forgotten or rejected until the next run of the scope rewrites
them. Until then they are shown no more than recall tells them.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.settings import Settings
from stores.scenes import ProfileFile

__all__ = ["hides", "shown"]


def hides(settings: Settings, scope: str) -> Callable[[ProfileFile], bool]:
    """Give what says of a file of a scope whether it is not to be shown.

    Reads the tombstones, and the store only where the scope has some. Raises what log and store
    raise: what cannot be looked up is not shown.
    """
    from flows.opening import open_tombstones

    kept_out = open_tombstones(settings).known
    if not kept_out.concerns(scope):
        return lambda file: False

    from connectors.embeddings import make_embedder
    from flows.opening import open_store
    from flows.scenes.resting import gone_in, rests_on

    with open_store(settings, make_embedder(settings), write=False) as store:
        gone = gone_in(scope, store.atoms_of(scope), kept_out)
    return lambda file: rests_on(gone, scope, (*file.atoms, *file.archived), file.updated, kept_out)


def shown(settings: Settings, scope: str, files: dict[str, ProfileFile]) -> dict[str, ProfileFile]:
    """Give the files of a scope that may be shown."""
    if not files:
        return files
    hidden = hides(settings, scope)
    return {name: file for name, file in files.items() if not hidden(file)}
