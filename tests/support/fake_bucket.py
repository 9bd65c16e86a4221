# SPDX-License-Identifier: Apache-2.0
"""A bucket with any keys at all behind a real port: ListObjectsV2 on one page, GET and HEAD, no signatures checked.

The S3 server of the other tests keeps its objects as files, which cannot have such keys, and answers only as a store.
"""

from __future__ import annotations

import http.server
import threading
import urllib.parse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from xml.sax.saxutils import escape

__all__ = ["FakeBucket"]


class FakeBucket(AbstractContextManager["FakeBucket"]):
    """Serves ``objects``, or gives ``answer`` (status, body, headers) to every request."""

    def __init__(
        self, objects: Mapping[str, bytes], answer: tuple[int, bytes, dict[str, str]] | None = None
    ) -> None:
        self.objects, self.answer = dict(objects), answer
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.options = {
            "endpoint": f"http://127.0.0.1:{self._server.server_address[1]}",
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
        }

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def list(self, prefix: str, delimiter: str, after: str) -> str:
        """The page of the keys that begin with ``prefix``."""
        found, folders = [], set()
        for key in sorted(self.objects):
            below = key.removeprefix(prefix)
            if not key.startswith(prefix) or key <= after:
                continue
            if delimiter and delimiter in below:
                folders.add(prefix + below.partition(delimiter)[0] + delimiter)
                continue
            found.append(
                f"<Contents><Key>{_text(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>&quot;1&quot;</ETag>"
                "<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
            )
        found += [
            f"<CommonPrefixes><Prefix>{_text(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        ]
        return f"<ListBucketResult>{''.join(found)}</ListBucketResult>"


def _text(key: str) -> str:
    return "".join(f"&#{ord(letter)};" if letter < " " else escape(letter) for letter in key)


def _handler(bucket: FakeBucket) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            if bucket.answer is not None:
                self._send(*bucket.answer)
            elif "list-type" in query:
                page = bucket.list(
                    query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
                )
                self._send(200, page.encode(), {})
            else:
                body = bucket.objects.get(urllib.parse.unquote(url.path)[1:].partition("/")[2])
                if body is None:
                    self._send(404, b"", {})
                    return
                headers = {"ETag": '"1"', "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
                wanted = self.headers.get("Range")
                if wanted is None:
                    self._send(200, body, headers)
                    return
                first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                part = body[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
                self._send(206, part, headers)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
