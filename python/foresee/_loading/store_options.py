# SPDX-License-Identifier: Apache-2.0
"""Storage options as texts, from a mapping or from a store of the package obstore.

The core reads with its own requests, so only the settings of such a store are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from foresee._loading import credentials
from foresee.errors import ConfigError

PROVIDER = "credential_provider"

_EXAMPLE = 'storage_options={"region": "eu-1"}'
_OTHER_STORES = {
    "LocalStore": "give its directory as the data instead",
    "MemoryStore": "the core cannot read its memory; write the objects to a directory, and give that",
}


class ObjectStore(Protocol):
    """An ``S3Store``, ``GCSStore``, ``AzureStore`` or ``HTTPStore`` of ``obstore.store``."""

    @property
    def client_options(self) -> Any: ...


StorageOptions: TypeAlias = Mapping[str, str] | ObjectStore


class StoreOptions(dict[str, str]):
    """Storage options with a function for credentials, which is pickled with them."""

    def __init__(self, texts: Mapping[str, str], function: Callable[[], Any]) -> None:
        super().__init__(texts)
        self._function = function
        self[PROVIDER] = credentials.register(function)

    def __reduce__(self) -> tuple[Any, ...]:
        texts = {name: value for name, value in self.items() if name != PROVIDER}
        return StoreOptions, (texts, self._function)


def storage_options(options: object) -> dict[str, str]:
    """Return storage options as texts; numbers, True and False in the store's spelling.

    Raises:
        ConfigError: neither mapping nor store, or a value that is no text; the message omits the value, which may be
            secret.
    """
    if options is None:
        return {}
    if isinstance(options, StoreOptions):
        return options
    kind = _kind(options)
    if kind is not None:
        return _of_store(options, kind)
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"storage_options is a {type(options).__name__}; texts by name expected, such as {_EXAMPLE}, or a store of "
            "obstore"
        )
    if PROVIDER in options:
        raise ConfigError(
            f"storage_options has {PROVIDER!r}, which only a store of obstore has; give the store as storage_options="
        )
    return _texts(options, "storage_options")


def _kind(store: object) -> str | None:
    """Return the name of the class of a store of obstore; None for other objects."""
    for base in type(store).__mro__:
        if base.__module__ == "obstore.store" and base.__name__.endswith("Store"):
            return base.__name__
    return None


def _of_store(store: Any, kind: str) -> dict[str, str]:
    if kind in _OTHER_STORES:
        raise ConfigError(f"storage_options is a {kind} of obstore; {_OTHER_STORES[kind]}")
    client = dict(store.client_options or {})
    if client.pop("default_headers", None):
        raise ConfigError(
            f"storage_options is a {kind} with default_headers, which the core does not send; leave them out"
        )
    texts = _texts({**dict(getattr(store, "config", None) or {}), **client}, f"the {kind}")
    function = getattr(store, PROVIDER, None)
    return texts if function is None else StoreOptions(texts, function)


def _texts(options: Mapping[Any, Any], what: str) -> dict[str, str]:
    faults: list[str] = []
    texts: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            faults.append(
                f"{what} has a {type(value).__name__} as {name!r}; a text expected, such as {_EXAMPLE}"
            )
        else:
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if faults:
        raise ConfigError(faults)
    return texts
