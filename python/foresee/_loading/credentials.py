# SPDX-License-Identifier: Apache-2.0
"""Credentials that Python obtains for buckets: AWS profiles through botocore, and functions of the caller.

The Rust core calls this module when an origin needs credentials, and again before they expire. Secrets go back to the
origin, and nowhere else: storage options contain only the name of the profile, or of a function in this process.
"""

from __future__ import annotations

import asyncio
import configparser
import importlib.util
import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from foresee._loading import packages

if TYPE_CHECKING:
    from foresee import _native

CREDENTIAL_NAMES = ("access_key_id", "secret_access_key", "token", "access_key", "sas_token")

# A profile with an unknown end of its credentials is read again after this many seconds.
_UNKNOWN_END = 900.0

_functions: dict[str, Callable[[], Any]] = {}
_numbers = itertools.count(1)


def register(function: Callable[[], Any]) -> str:
    """Return the name of a function that returns credentials, for the storage option ``credential_provider``.

    The function returns, or is a coroutine function for, a mapping in the form of obstore: names of
    ``CREDENTIAL_NAMES``, and ``expires_at``, a datetime or None. This process holds it until it ends.
    """
    for name, known in _functions.items():
        if known is function:
            return name
    # Of this process: the host of a node's cache must not take it for one of its own.
    name = f"{os.getpid()}-{next(_numbers)}"
    _functions[name] = function
    return name


def function_of(name: str) -> Callable[[], Any] | None:
    """Return the function that was registered under ``name``."""
    return _functions.get(name)


def reads_profiles() -> bool:
    """Return whether botocore is installed."""
    return importlib.util.find_spec("botocore") is not None


def profile_settings(profile: str | None) -> dict[str, str]:
    """Return region and endpoint of an AWS profile (None: the default one) as storage options.

    Raises:
        LookupError: the profile does not exist, or its file cannot be parsed.
        PackageMissing: botocore is not installed.
    """
    session = _session(profile)
    found = {"region": session.get_config_variable("region"), **_endpoint(session)}
    return {name: value for name, value in found.items() if value}


def obtain(kind: str, name: str | None, reply: _native.CredentialReply) -> None:
    """Obtain credentials in a thread, and send them to ``reply``; ``kind`` is ``profile`` or ``provider``."""

    def work() -> None:
        try:
            values, expires = _of_profile(name) if kind == "profile" else from_function(name)
        except Exception as error:  # noqa: BLE001 - a function of the caller may raise anything
            reply.fail(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        else:
            reply.send(values, expires)

    threading.Thread(target=work, name="foresee-credentials", daemon=True).start()


def from_function(name: str | None) -> tuple[dict[str, str], float | None]:
    """Return the credentials of a registered function, and the end of their validity in seconds since 1970.

    Raises:
        LookupError: this process has no such function.
        TypeError: it returned no mapping.
    """
    function = _functions.get(name or "")
    if function is None:
        raise LookupError(
            "the function of an obstore store exists only in the process that made the store; use a profile or keys, "
            "or read without the cache of the node (FORESEE_NODE=off)"
        )
    given = function()
    if inspect.isawaitable(given):
        given = asyncio.run(_awaited(given))
    if not isinstance(given, Mapping):
        raise TypeError(f"it returned a {type(given).__name__}, and a mapping is expected")
    values = {name: str(given[name]) for name in CREDENTIAL_NAMES if given.get(name)}
    expires = given.get("expires_at")
    return values, None if expires is None else _seconds(expires)


async def _awaited(given: Any) -> Any:
    return await given


def _of_profile(profile: str | None) -> tuple[dict[str, str], float | None]:
    exceptions = packages.botocore("exceptions")
    # A new session reads the files again: other programs renew what is in them.
    session = _session(profile)
    try:
        found = session.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except exceptions.BotoCoreError as error:
        raise PermissionError(f"{error}; {_log_in(profile, session)}") from error
    if found is None or frozen is None or not frozen.access_key or not frozen.secret_key:
        raise LookupError(f"it has no credentials; {_log_in(profile, session)}")
    values = {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token or "",
    }
    return values, _expiry(found)


def _expiry(credentials: Any) -> float | None:
    """Return the end of botocore's credentials in seconds since 1970; None if they have none."""
    if not isinstance(credentials, packages.botocore("credentials").RefreshableCredentials):
        return None
    end = getattr(credentials, "_expiry_time", None)
    return _seconds(end) if isinstance(end, datetime) else time.time() + _UNKNOWN_END


def _seconds(end: datetime) -> float:
    return (end if end.tzinfo is not None else end.replace(tzinfo=timezone.utc)).timestamp()


def _session(profile: str | None) -> Any:
    exceptions = packages.botocore("exceptions")
    session = packages.botocore("session").Session(profile=profile)
    try:
        # Reads the files, and finds the profile in them.
        if session.get_scoped_config() is not None and profile is not None:
            role = session.get_component("credential_provider").get_provider("assume-role")
            role._prompter = _refuse_prompt  # noqa: SLF001 - botocore has no setting for it
    except (exceptions.BotoCoreError, configparser.Error) as error:
        raise LookupError(f"{error}; `aws configure list-profiles` lists those that exist") from error
    return session


def _refuse_prompt(*_: object, **__: object) -> str:
    raise PermissionError(
        "it needs a code of a second factor, which nobody enters during a run; set the keys with "
        '`eval "$(aws configure export-credentials --format env)"`'
    )


def _endpoint(session: Any) -> dict[str, str]:
    """Return the endpoint of the profile for S3, or for all services."""
    scoped = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(scoped.get("services", ""), {})
    s3 = services.get("s3", {}) if isinstance(services, Mapping) else {}
    found = (s3.get("endpoint_url") if isinstance(s3, Mapping) else None) or scoped.get("endpoint_url")
    return {"endpoint_url": found} if found else {}


def _log_in(profile: str | None, session: Any) -> str:
    """Return the remedy for missing or expired credentials."""
    of = "" if profile is None else f" --profile {profile}"
    scoped = session.get_scoped_config()
    if "sso_session" in scoped or "sso_start_url" in scoped:
        return f"run `aws sso login{of}`"
    return f"run `aws sso login{of}` or `aws configure{of}`"
