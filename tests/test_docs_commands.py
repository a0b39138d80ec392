"""Every command of the README and of each docs page runs as it is written there.

The commands are read from the pages. Each page has a sandbox: a folder in which the names that the page uses exist,
with small data in them. Its blocks and the commands in its prose run there in order, in bash, and must end with 0.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doc_pages import PAGES, Step, spans_of, steps_of
from helpers import ONE_THREAD, ROOT
from warm_commands import PARSE_ONLY, write_commands

import xmlpreck
from xmlpreck import cli
from xmlpreck.config import InputError
from xmlpreck.data import catalog, formats, synthetic
from xmlpreck.data.formats import Dataset

# Not run, and why. Of our own commands and tools the words are parsed all the same, as `--help` lists them.
NOT_RUN = {
    "pip install .": "asks the network; .ci/run does it",
    "pip install '.[test]'": "asks the network; .ci/run does it",
    "pip install -e '.[dev,test]'": "asks the network",
    "pip install '.[docs]'": "asks the network; .ci/run does it",
    "mkdocs build -f .mkdocs.yml --strict": "needs the extra `docs`; .ci/run does it",
    "pip install 'xmlpreck[cluster]'": "asks the network",
    "pip install 'xmlpreck[language]'": "asks the network",
    "pip install 'xmlpreck[serve]'": "asks the network",
    "pip install 'xmlpreck[hub]'": "asks the network",
    "hf auth login": "asks for a token",
    "xmlpreck push runs/news jane/news --data NEW": "asks the network; test_hub.py has a Hub on this machine",
    "xmlpreck pull jane/news --out M": "asks the network; test_hub.py has a Hub on this machine",
    "pip install 'xmlpreck[skos]'": "asks the network",
    "xmlpreck serve --model runs/news": "does not end; test_serve.py asks it",
    "python tools/bench_serve.py --model runs/eurlex --texts dev.parquet --seconds 60": "takes minutes, and needs wrk",
    "python tools/bench_serve.py --model runs/eurlex --texts dev.parquet --minutes 30 --rate 50": "takes half an hour",
    "python tools/bench_annif.py --annif annif/bin/python --data ../shared/data/annif-archaeology --work W": "needs it",
    "pip install 'xmlpreck[embed]'": "asks the network",
    "pip install 'ray[client]'": "asks the network",
    "pip install 'ray[default]'": "asks the network",
    "pytest": "runs this test; .ci/run does it",
    "pytest -n 0 tests/test_kernels.py": "tests within a test",
    'pytest -n 0 -k "brute_force" tests/test_kernels.py': "tests within a test",
    "xmlpreck data fetch eurlex --data-dir ~/xmc": "asks the network; test_fetch.py fetches from this machine",
    "xmlpreck data convert IN s3://bucket/folder": "needs a bucket; test_remote_writing.py has a store on this machine",
    "xmlpreck train --data s3://bucket/folder --out s3://bucket/model": "needs a bucket",
    "xmlpreck predict --model s3://bucket/model --data s3://bucket/folder --out P.parquet": "needs a bucket",
    "ray start --head --port 6379": "would join what others run on this machine",
    "ray start --address 10.0.0.1:6379": "needs a second machine",
    "xmlpreck predict --engine ray --address auto --model /shared/M --data /shared/D --out P.parquet": "needs these",
    "ray stop": "ends all of Ray on this machine, that of others too",
    "xmlpreck predict --engine ray --model /shared/M --data /shared/D --out /shared/P.parquet": "needs Kubernetes",
    "kubectl exec -it POD -- xmlpreck predict --engine ray --address auto --model /shared/M --data /shared/D "
    "--out /shared/P.parquet": "needs Kubernetes",
    "python tools/bench_cluster.py --data eurlex57k --rows 10000 --label-shards 1 2 4 --batch-rows 512 "
    "--json docs/bench_cluster.json": "takes minutes",
    "python tools/make_synthetic.py --out a670k": "makes 0.5 GB; the page's other commands get a small set of it",
    "python tools/reproduce.py --data FOLDER --out docs": "takes hours",
    "python tools/bench_dense.py --predict-only --labels 200000 --rows 1000 --repeat 2 --threads 1": "takes a minute",
    "python tools/bench_dense_svd.py --data ../shared/data/bibtex": "takes a minute, on real data",
    "python tools/bench_heldout.py --data bibtex delicious --try train.idf=0 --try train.idf=1 --seeds 5": "real data",
    "python tools/bench_heldout.py --binary --rows 16000 --most 3000 --data … --try train.idf=0 --try train.idf=1 "
    "--seeds 2": "takes minutes, on real data",
    "python tools/bench_labels.py --data FOLDER --labels FILE --threads 1": "takes minutes, on real data",
    "python tools/bench_peers.py": "needs the environments of other tools",
    "python tools/bench_text.py --data train.parquet": "takes a minute, on real data",
    "python tools/bench_text.py --scores FOLDER ... --no-tune --language de": "takes minutes, on real data",
    "python tools/bench_text.py --scores FOLDER ... --set text.char_ngrams=3-5": "takes minutes, on real data",
    "python tools/bench_busy.py --data ../shared/data/bibtex --threads 1 2 4 8 --repeat 7 --patience 60": "takes long",
    "python tools/bench_tail.py --update docs/tail.md": "takes an hour, on real data",
    "python tools/make_theory.py --out docs": "takes half a minute; test_theory.py holds what it draws",
    "python tools/torture.py --data ../shared/data/man-seealso --rows 5000 --runs 20 --seed 20261119": "takes minutes",
    "python tools/torture.py --data ../shared/data/bibtex --rows 2000 --runs 50 --seed 20261117": "takes minutes",
    "python tools/torture.py --data ../shared/data/bibtex --runs 50 --seed 20261116": "takes minutes, on real data",
    "python tools/fuzz.py --cases 1000000 --seed 20261116": "takes hours",
    "python tools/torture_cluster.py --data eurlex57k --epochs 1 --set train.batch_rows=512 --runs 10": "takes minutes",
}

# What a page takes for granted, beyond the data that `small_data` puts into every sandbox.
BEFORE = {
    "evaluation.md": """
        xmlpreck train --data demo --no-tune
        xmlpreck train --data eurlex57k --no-tune --out M
        for name in A.npz B.txt C.parquet P.parquet; do xmlpreck predict --model M --data eurlex57k --out $name; done
        """,
    "text.md": """
        xmlpreck train --data notes.json --no-tune --out runs/notes
        cp articles.jsonl new_notes.json
        """,
    "dense.md": """
        printf '%s\\n' 'import numpy as np' 'for split, n_rows in (("train", 1200), ("test", 300)):' \\
            '    dense = np.random.default_rng(n_rows).normal(size=(n_rows, 20))' \\
            '    np.save(f"E_{split}.npy", dense.astype(np.float32))' > make.py
        python make.py
        """,
    "explain.md": "xmlpreck train --data texts",
    "large.md": """
        python tools/make_synthetic.py --rows 500 --test-rows 100 --features 300 --labels 400 --nnz 8 --out a670k
        """,
    "prediction.md": """
        xmlpreck train --data bibtex --no-tune
        xmlpreck train --data texts --out runs/news
        xmlpreck train --data D --heldout 0.1 --out M
        """,
}


def write_folder(folder: Path, sizes: tuple[int, int, int, int], **means: float) -> Path:
    """Make repository text with the given training rows, test rows, features and labels."""
    n_train, n_test, n_features, n_labels = sizes
    whole = synthetic.make_dataset(n_train + n_test, n_features, n_labels, seed=7, **means)
    for split, part in (("train", slice(n_train)), ("test", slice(n_train, None))):
        rows = Dataset(whole.rows[part], whole.labels[part], whole.label_names, whole.feature_names)
        formats.write_split(folder, split, [rows], "repository")
    return folder


def make_texts(n_rows: int, seed: int) -> list[dict[str, object]]:
    """Draw texts of a few words, each with the two words that name its labels."""
    words = ("duty", "import", "olive", "oil", "wine", "fish", "milk", "sugar", "steel", "coal", "rice", "tea", "salt")
    draws = np.random.default_rng(seed).choice(words, (n_rows, 8))
    return [{"text": " ".join(row), "labels": sorted(set(row[:2].tolist()))} for row in draws]


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a checkout, with small data under the names of the docs; `home` in it is the reader's own."""
    folder = tmp_path_factory.mktemp("docs") / "small"
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")  # tools import the reference
    small = (1200, 300, 200, 40)
    for name in ("D", "NEW", "eurlex57k"):
        write_folder(folder / name, small)
    for name in ("IN", "PATH"):
        shutil.copy(folder / "D" / "train.txt", folder / name)
    card = catalog.need_card("bibtex")  # data under a catalogue name must have the sizes of its card
    sizes = (card.n_train, card.n_test, card.n_features, card.n_labels)
    bibtex = write_folder(folder / "home/xmc/bibtex", sizes, features_per_row=5, labels_per_row=2)
    shutil.copytree(bibtex, folder / "home/.cache/xmlpreck/data/bibtex")
    n_test = sizes[1]
    guesses = formats.TopK(np.tile(np.arange(5, dtype=np.int32), (n_test, 1)), np.ones((n_test, 5), np.float32))
    formats.write_predictions(folder / "other.txt", guesses, sizes[3])

    texts = {name: make_texts(200, seed) for seed, name in enumerate(("texts/train", "texts/test", "new"))}
    (folder / "texts").mkdir()
    for name, rows in texts.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    for name in ("notes.json", "articles.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in texts["new"]), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def commands() -> Iterator[Path]:
    """A folder with `xmlpreck` and `python`, for PATH; both are answered by one warm process on one core."""
    cores = sorted(os.sched_getaffinity(0))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])  # of the worker: each has a core of its own
    with tempfile.TemporaryDirectory() as name:  # the address of a socket may not be long
        folder = Path(name)
        address = str(folder / "socket")
        places = [str(Path(xmlpreck.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        server = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "warm_commands.py", address],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "MPLBACKEND": "agg"} | ONE_THREAD,
            stdin=subprocess.PIPE,  # its end tells the process that the tests have ended, however they did
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            os.sched_setaffinity(server.pid, {cores[number % len(cores)]})
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            write_commands(folder / "bin", address)
            yield folder / "bin"
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # commands that hang too
            server.wait()


class Sandbox:
    """A folder of one page, in which bash runs."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder = folder
        kept = ("XMLPRECK_OFFLINE", "NUMBA_CACHE_DIR", "PYTHONPATH", "LANG")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {"PATH": f"{commands}:/usr/bin:/bin", "HOME": str(folder / "home"), "PYTHONUTF8": "1"}

    def bash(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{script}"],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=360,  # hang guard
        )


@pytest.fixture
def sandbox(small_data: Path, commands: Path, tmp_path: Path) -> Sandbox:
    return Sandbox(Path(shutil.copytree(small_data, tmp_path / "sandbox", symlinks=True)), commands)


def is_name(command: str) -> bool:
    """Tell a command's name in prose, such as `xmlpreck plan`, from one to type: it lacks what the command needs."""
    words = command.split()
    if not all(word.isalpha() for word in words):
        return False
    if words[0] != "xmlpreck":
        return True  # `ray start` and the like: how their words go together is not ours to say
    try:
        cli.build_parser().parse_args(words[1:])
    except InputError:
        return True
    return False


def script_of(step: Step) -> str:
    """What is run of a shell step."""
    if step.in_prose and is_name(step.text):
        return f"{step.text} --help" if step.text.startswith("xmlpreck") else ""
    if not any(command in NOT_RUN for command in step.commands()):
        return step.text
    return "\n".join(command for command in step.commands() if command not in NOT_RUN)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_as_written(page: Path, sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    steps = steps_of(page.read_text(encoding="utf-8"))
    if any("--engine ray" in script_of(step) for step in steps if step.kind == "sh"):
        sandbox.environment["RAY_ADDRESS"] = request.getfixturevalue("ray_cluster").address
    if page.name in BEFORE:
        ready = sandbox.bash(BEFORE[page.name])
        assert ready.returncode == 0, ready.stdout
    printed = ""
    for step in steps:
        where = f"{page.name}, line {step.line}"
        if step.kind == "output":
            for line in filter(None, map(str.strip, step.text.splitlines())):
                assert line in printed, f"{where}: {line!r} is not printed by the block before:\n{printed}"
            continue
        if step.kind == "python":
            (sandbox.folder / "block.py").write_text(step.text, encoding="utf-8")
            script = "python block.py"
        else:
            script = script_of(step)
        done = sandbox.bash(script)
        printed = done.stdout
        assert done.returncode == 0, f"{where}: exit {done.returncode} of\n{script}\n{printed}"


def all_commands() -> dict[str, list[str]]:
    """The commands of all pages, each with the names of its pages."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for step in steps_of(page.read_text(encoding="utf-8")):
            for command in step.commands() if step.kind == "sh" else []:
                found.setdefault(command, []).append(page.name)
    return found


def test_commands_are_found() -> None:
    """If the pages were read wrongly, nothing would run and nothing would fail."""
    found = all_commands()
    assert "xmlpreck train --data demo" in found
    assert "xmlpreck data validate PATH" in found
    assert len(found) > 60


@pytest.mark.parametrize("command", NOT_RUN)
def test_commands_that_are_not_run(command: str, small_data: Path, commands: Path) -> None:
    assert command in all_commands(), "no page has it any longer: drop it from NOT_RUN"
    words = shlex.split(command)
    for start in (place for place, word in enumerate(words) if word in ("xmlpreck", "python")):
        done = Sandbox(small_data, commands).bash(shlex.join(words[start:]), **{PARSE_ONLY: "1"})
        assert done.returncode == 0, f"{command}: {done.stdout}"
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        for named in re.findall(r"^(?:\.|xmlpreck)\[([\w,]+)\]$", words[-1]):
            assert set(named.split(",")) <= set(extras), command


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """All flags of a parser and of its commands."""
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags = flags.union(*map(flags_of, action.choices.values()))
    return flags


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_in_prose_exist(page: Path) -> None:
    """A flag that is named without its command is one of some command or tool."""
    tools = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tools").glob("*.py"))
    known = flags_of(cli.build_parser()) | set(re.findall(r'"(--[a-z][a-z-]*)"', tools))
    for _, span in spans_of(page.read_text(encoding="utf-8")):
        for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", span):
            assert flag in known, f"{page.name}: `{span}`"
