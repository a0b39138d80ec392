"""xmlpreck serve"""

import argparse
import dataclasses
import os
import sys
from typing import Any

from xmlpreck.cli.options import add_verb, any_number, note, show, whole_number
from xmlpreck.serve.settings import ServeLimits, ServeSettings

_LIMITS = {field.name: field for field in dataclasses.fields(ServeLimits)}


def add_serve(commands: Any) -> None:
    serve = add_verb(commands, "serve", run, "answer requests over HTTP: labels of documents, and why")
    serve.add_argument(
        "--model", required=True, nargs="+", metavar="DIR", help="model directories; NAME=DIR gives one another name"
    )
    default = ServeSettings()
    serve.add_argument(
        "--host", default=default.host, help=f"address to listen at (default: {default.host}, this machine only)"
    )
    serve.add_argument(
        "--port", default=str(default.port), metavar="INT", help=f"port; 0 = any that is free (default: {default.port})"
    )
    serve.add_argument(
        "--workers", default=str(default.workers), metavar="INT",
        help=f"processes that answer; more for more cores (default: {default.workers})",
    )  # fmt: skip
    serve.add_argument(
        "--token-file", metavar="FILE", help="file whose first line requests must send: Authorization: Bearer TOKEN"
    )
    serve.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), to serve HTTPS")
    serve.add_argument("--tls-key", metavar="FILE", help="private key (PEM) of --tls-cert")
    serve.add_argument(
        "--allow-anyone", action="store_true", help="listen at an address that others can reach without a token"
    )
    serve.add_argument(
        "--reload", default=f"{default.reload_seconds:g}", metavar="SECONDS",
        help=f"seconds between looks for new versions of the models; 0 = never (default: {default.reload_seconds:g})",
    )  # fmt: skip
    group = serve.add_argument_group("limits")
    for name, field in _LIMITS.items():
        metavar = "INT" if isinstance(field.default, int) else "NUMBER"
        group.add_argument(
            f"--{name.replace('_', '-')}", default=f"{field.default:.10g}", metavar=metavar,
            help=f"{field.metadata['help']} (default: {field.default:.10g})",
        )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    limits: dict[str, Any] = {name: _value(name, getattr(args, name)) for name in _LIMITS}
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers are forks, and numpy would start threads before
    from xmlpreck import serve

    def say_ready(address: str) -> None:
        show(args, {"address": address}, f"serving at {address}")
        sys.stdout.flush()

    serve.run(
        args.model,
        note=note,
        ready=say_ready,
        limits=ServeLimits(**limits),
        host=args.host,
        port=whole_number("--port", args.port, 0),
        workers=whole_number("--workers", args.workers, 1),
        token_file=args.token_file,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        allow_anyone=args.allow_anyone,
        reload_seconds=any_number("--reload", args.reload),
    )


def _value(name: str, text: str) -> int | float:
    flag = f"--{name.replace('_', '-')}"
    return whole_number(flag, text, 1) if isinstance(_LIMITS[name].default, int) else any_number(flag, text)
