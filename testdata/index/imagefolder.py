# SPDX-License-Identifier: Apache-2.0
"""Writes `imagefolder.json`: what torchvision makes of a tree that is hard to sort.

The tree is made on disk, listed as a lister would list it (links followed, folders ending in `/`), and read
by `torchvision.datasets.ImageFolder`. The Rust tests hold the `folder` layout against the result. Keys are
percent-encoded bytes, because not all of them are text. Run it with a torchvision installed:

    python testdata/index/imagefolder.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from urllib.parse import quote_from_bytes

import torchvision
from torchvision.datasets import ImageFolder

FILES = [
    # Upper case, a hidden file, a name that is all extension, two dots, no match, an extension inside.
    "cat/b.JPG", "cat/a.jpeg", "cat/.hidden.png", "cat/.jpg", "cat/x.tar.webp", "cat/notes.txt", "cat/a.jpg.bak",
    "cat/10.png", "cat/9.png", "cat/Z.png", "cat/_.png", "cat/ .png", "cat/a b.TIFF", "cat/q?x=1.png", "cat/#1.png",
    # Folders whose order as paths is not their order as names, and files beside folders of like name.
    "cat/sub/1.png", "cat/sub.d/1.png", "cat/sub-a/1.png", "cat/sub/deep/1.png", "cat/sub/deep.er/0.png",
    "cat/sub.png", "cat/sub/deep.png", "cat/t/x.pgm", "cat/t.x/x.ppm", "cat/t!/x.bmp",
    # Classes: dots, capitals, digits, hidden, other alphabets, composed and decomposed letters, spaces.
    "cat.d/1.png", "cat-2/1.png", "Cat/1.png", "10/1.png", "9/1.png", ".git/1.png", "a b/1.png", "~tmp/1.png",
    "caté/1.png", "cate\u0301/1.png", "ångström/é.png", "ångström/e\u0301.png", "ångström/z.png", "漢字/字.tif",
    "😀/1.PNG", "😀/\ue000.png", "😀/漢.png", "\ue000/1.png", "straße/ẞ.png", "İ/\u0131.jpg", "İ/a.\u212apg",
    # A class without a picture; files that belong to no class.
    "textual/readme.md", "top-level.png", ".DS_Store",
]  # fmt: skip
BROKEN = [  # Not UTF-8: Latin-1, a lone continuation byte, a letter cut short, an encoded surrogate, an overlong one.
    b"caf\xe9/1.png", b"caf\xe9/\x80.png", b"caf\xe9/\xf0\x9f.png", b"caf\xe9/\xf0\x9f\x98\x80.png",
    b"caf\xe9/\xed\xa0\x80.JPG", b"caf\xe9/\xc0\xaf.png", b"caf\xe9/z\xff/1.png", b"caf\xe9/z\xc3\xbf/1.png",
    b"caf\xe9/\xee\x80\x80.png", b"\xff/1.png", b"\x80/1.png",
]  # fmt: skip
FOLDERS = ["empty/", "empty/below/", "cat/bare/"]


def main() -> None:
    """Make the tree, ask torchvision, write the answer beside this script."""
    with tempfile.TemporaryDirectory() as root:
        base = os.fsencode(root)
        for folder in FOLDERS:
            (Path(root) / folder).mkdir(parents=True)
        for number, key in enumerate([*map(os.fsencode, FILES), *BROKEN]):
            path = os.path.join(base, key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(b"x" * number)
        (Path(root) / "cat/link").symlink_to(Path(root) / "Cat", target_is_directory=True)
        (Path(root) / "linked").symlink_to(Path(root) / "9", target_is_directory=True)
        listing = []
        for folder_path, _, names in os.walk(base, followlinks=True):
            below = os.path.relpath(folder_path, base)
            if below != b".":
                listing.append({"key": quote_from_bytes(below) + "/", "bytes": 0})
            for name in names:
                path = os.path.join(folder_path, name)
                size = os.path.getsize(path)
                listing.append({"key": quote_from_bytes(os.path.relpath(path, base)), "bytes": size})
        found = ImageFolder(root, allow_empty=True)
        samples = [
            {"key": quote_from_bytes(os.fsencode(os.path.relpath(path, root))), "label": label}
            for path, label in found.samples
        ]
        try:
            ImageFolder(root)
        except FileNotFoundError as error:
            empty = str(error).split(". ", maxsplit=1)[0].removeprefix("Found no valid file for the classes ")
        answer = {
            "torchvision": torchvision.__version__.split("+")[0],
            "listing": sorted(listing, key=lambda one: str(one["key"])),
            "classes": [quote_from_bytes(os.fsencode(name)) for name in found.classes],
            "empty_classes": empty.split(", "),
            "samples": samples,
        }
    target = Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
