# SPDX-License-Identifier: Apache-2.0
"""``foresee serve``: sum the gradients of all jobs whose ranks connect, until a signal ends it."""

from __future__ import annotations

import argparse
import json
import signal

HELP = "run a gradient server: sum the gradients of ranks, and send the averages back"
EPILOG = (
    "The secret that all ranks and servers of a job share comes from --secret-file or from FORESEE_TOKEN. The server "
    "notifies connected ranks and ends with exit code 0 on SIGINT or SIGTERM. If it is restarted at the same address "
    "within the timeout of its ranks, it resumes their jobs. With a certificate it accepts TLS only, and ranks use "
    "tls://HOST:PORT; any certificate is valid, since the secret proves both ends of the session."
)
_MIB = 1 << 20
_END_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--bind", required=True, metavar="HOST:PORT", help="address to listen on; port 0: any free port"
    )
    parser.add_argument(
        "--secret-file", metavar="F", help="file with the secret, readable by its owner alone"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds until a silent rank is lost (30)"
    )
    parser.add_argument(
        "--early-buffer",
        type=int,
        default=64,
        metavar="MIB",
        help="buffer per job for gradients that arrive before their turn (64)",
    )
    parser.add_argument(
        "--policy",
        default="foresee",
        metavar="NAME",
        help="order of results (foresee); the same as on the ranks",
    )
    parser.add_argument(
        "--tls-cert", metavar="F", help="certificates in PEM, the server's first; with --tls-key"
    )
    parser.add_argument("--tls-key", metavar="F", help="its private key in PEM")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee._native import GradientServer
    from foresee._schema.addresses import resolve
    from foresee.errors import ConfigError

    if options.early_buffer < 1:
        raise ConfigError(f"--early-buffer {options.early_buffer}: 1 MiB or more")
    # Blocked before the server starts threads, which inherit the mask: only `sigwait` receives the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        server = GradientServer.start(
            resolve(options.bind, what="--bind"),
            timeout_s=options.timeout,
            early_buffer_bytes=options.early_buffer * _MIB,
            secret_file=options.secret_file,
            policy=options.policy,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
        )
        facts = {
            "address": server.address,
            "policy": options.policy,
            "timeout_seconds": options.timeout,
            "early_buffer_bytes": options.early_buffer * _MIB,
            "tls": options.tls_cert is not None,
        }
        text = f"serving gradients at {server.address}; Ctrl-C ends it"
        print(json.dumps(facts) if options.json else text, flush=True)
        signal.sigwait(_END_SIGNALS)
        server.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0
