"""Reading one scene, or the persona, of a scope. Blocking."""

from __future__ import annotations

from connectors.query.failures import ApiError
from connectors.query.service import MemoryStore
from stores.records import Profile

__all__ = ["find_persona", "find_scene"]

_SUFFIX = ".md"


def find_persona(store: MemoryStore, scope: str) -> Profile:
    """Read the persona. Raises :class:`~connectors.query.failures.ApiError` 404 without one."""
    for one in store.profiles_of(scope, "persona"):
        if one.scope == scope:
            return one
    raise ApiError(404, "not_found", "this scope has no persona yet")


def find_scene(store: MemoryStore, scope: str, name: str) -> Profile:
    """Read a scene by its file name, with or without ``.md``. Raises as above."""
    path = name if name.endswith(_SUFFIX) else name + _SUFFIX
    found = store.get_profile(scope, "scene", path)
    if found is None or found.scope != scope:
        raise ApiError(404, "not_found", "this scope has no scene with this name")
    return found
