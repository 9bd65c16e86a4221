# SPDX-License-Identifier: Apache-2.0
"""Emulators of Google Cloud Storage and of Azure Blob Storage, filled through their own interfaces."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import pathlib
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from support.processes import tool
from support.waiting import WATCHDOG, wait_until

#: The account that Azurite documents for everybody.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Emulator:
    """A server with the bucket or container ``bucket``."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [tool(command[0]), *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, what=f"the start of {command[0]}")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=WATCHDOG)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(self.url, timeout=1).close()
        except urllib.error.HTTPError:
            return True
        except (OSError, http.client.HTTPException):
            return False
        return True

    url: str


class GoogleEmulator(Emulator):
    """fake-gcs-server, which checks no credentials, and ignores conditions and page sizes."""

    uri = "gs://bucket"

    def __init__(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        place = [
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
            "-port",
            str(port),
            "-public-host",
            f"127.0.0.1:{port}",
        ]
        super().__init__("fake-gcs-server", *place, "-backend", "memory")
        headers = {"Content-Type": "application/json"}
        self._post("/storage/v1/b?project=test", b'{"name": "bucket"}', headers)

    def options(self, url: str) -> dict[str, str]:
        """Return the settings for the server at ``url``: this one, or a proxy in front of it."""
        return {"base_url": url, "skip_signature": "true"}

    def put(self, key: str, body: bytes) -> None:
        """Store an object."""
        name = urllib.parse.quote(key, safe="")
        self._post(f"/upload/storage/v1/b/bucket/o?uploadType=media&name={name}", body, {})

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        request = urllib.request.Request(f"{self.url}{path}", body, dict(headers), method="POST")
        urllib.request.urlopen(request, timeout=WATCHDOG).close()


class AzureEmulator(Emulator):
    """Azurite, which checks every signature."""

    uri = "az://bucket"

    def __init__(self, folder: pathlib.Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(folder)]
        super().__init__("azurite-blob", "--silent", "--skipApiVersionCheck", *place)
        self._put("/bucket", "restype=container", b"", {})

    def options(self, url: str) -> dict[str, str]:
        """Return the settings for the server at ``url``: this one, or a proxy in front of it."""
        parts = [f"AccountName={ACCOUNT}", f"AccountKey={ACCOUNT_KEY}", f"BlobEndpoint={url}/{ACCOUNT}"]
        return {"connection_string": ";".join(parts)}

    def put(self, key: str, body: bytes) -> None:
        """Store a blob."""
        self._put(f"/bucket/{urllib.parse.quote(key)}", "", body, {"x-ms-blob-type": "BlockBlob"})

    def _put(self, path: str, query: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request that is signed with the account's key ("Shared Key" in Azure's documentation)."""
        sent = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03", **headers}
        length, kind = str(len(body)) if body else "", "application/octet-stream"
        fields = ["PUT", "", "", length, "", kind, "", "", "", "", "", ""]
        fields += [f"{name}:{value}" for name, value in sorted(sent.items())]
        resource = f"/{ACCOUNT}/{ACCOUNT}{path}" + (f"\n{query.replace('=', ':')}" if query else "")
        text = "\n".join([*fields, resource]).encode()
        digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), text, hashlib.sha256)
        sent["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        sent["Content-Type"] = kind
        url = f"{self.url}/{ACCOUNT}{path}" + (f"?{query}" if query else "")
        request = urllib.request.Request(url, body, sent, method="PUT")
        urllib.request.urlopen(request, timeout=WATCHDOG).close()


def free_port() -> int:
    """Return a port that no process of this host uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
