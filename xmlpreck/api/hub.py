"""Share models on the Hugging Face Hub: push a model directory with a card, pull one and check it."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import xmlpreck
from xmlpreck.api.engine import Note, log
from xmlpreck.api.evaluation import EvaluationOptions, evaluate
from xmlpreck.config import InputError
from xmlpreck.data.location import DataLocation
from xmlpreck.evaluation.card import MARK, model_card
from xmlpreck.files import write_errors
from xmlpreck.files.atomic import atomic_folder
from xmlpreck.model import Model
from xmlpreck.model.directory import FILES, MODEL, check_target, open_files, read_about
from xmlpreck.model.seal import ABOUT, MEMO, ModelError, resealed

CARD = "README.md"
SHARED = tuple(name for name in FILES if name != MEMO)  # the memo is about files of one machine
# What a repository may have beside a model; these are not pulled.
BESIDE = (CARD, ".gitattributes", "LICENSE", "LICENSE.md", "LICENSE.txt")


class Pushed(NamedTuple):
    """A model on the Hub."""

    url: str  # of the commit
    n_files: int
    n_bytes: int


def push(
    model: str | Path,
    name: str,
    data: DataLocation | str | None = None,
    *,
    private: bool = False,
    token: str | None = None,
    n_threads: int = 0,
    note: Note = log.info,
    progress: bool = False,
) -> Pushed:
    """Upload a model directory to the repository `name` (user/model) of the Hugging Face Hub, in one commit.

    `data` are rows to score the model on for its card (a path means its test split). The token is that of
    `hf auth login` or $HF_TOKEN, if none is given. A repository is made where there is none; the files of another
    model in it are replaced, and all others stay, also a card that was not written by us. The path of the training
    rows is not uploaded.
    """
    folder = Path(model)
    loaded = Model.load(folder, verify=True)
    with _hub_errors(name):
        hub = _import_hub()
        token = token or hub.get_token()
        if not token:
            raise InputError("no token of the Hugging Face Hub: run `hf auth login`, or set HF_TOKEN")
        hub.utils.validate_repo_id(name)
    card = _card(loaded, folder, name, data, n_threads, note, progress)
    about = json.dumps(resealed(_without_place(read_about(folder))), indent=1) + "\n"
    api = _api(hub, token)
    with _hub_errors(name), _bars(hub, progress):
        api.create_repo(name, private=private, exist_ok=True)
        there = {file.rfilename for file in api.model_info(name).siblings or ()}
        contents: dict[str, str | bytes] = {CARD: card.encode(), ABOUT: about.encode()}
        if CARD in there and MARK.encode() not in Path(api.hf_hub_download(name, CARD)).read_bytes():
            note(f"{name}: its {CARD} was not written by xmlpreck, and stays")
            del contents[CARD]
        contents |= {file: str(folder / file) for file in sorted(read_about(folder)["sha256"]) if file != ABOUT}
        changes: list[Any] = [hub.CommitOperationAdd(file, content) for file, content in contents.items()]
        changes += [hub.CommitOperationDelete(file) for file in sorted(there & set(SHARED) - set(contents))]
        made = api.create_commit(name, changes, commit_message=f"Push a model of xmlpreck {xmlpreck.__version__}")
    sizes = (len(content) if isinstance(content, bytes) else os.path.getsize(content) for content in contents.values())
    return Pushed(str(made.commit_url), len(contents), sum(sizes))


class Pulled(NamedTuple):
    """A model that was downloaded and checked."""

    path: str
    commit: str
    n_bytes: int


def pull(
    name: str,
    out: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    progress: bool = False,
) -> Pulled:
    """Download a model from the Hugging Face Hub, check it as any other model, and write it to `out`.

    `out` is runs/NAME by default, and is not replaced then. Files that were whole when a pull was stopped are not
    downloaded again. Nothing is written to `out` before the whole model has been checked.
    """
    folder = Path(out) if out is not None else Path("runs") / name.rpartition("/")[2]
    check_target(folder)
    if out is None and folder.exists():
        raise InputError(f"{folder}: exists: name a folder by --out, which is replaced if it holds a model")
    with _hub_errors(name):
        hub = _import_hub()
        hub.utils.validate_repo_id(name)
        api = _api(hub, token)
        found = api.model_info(name, revision=revision, files_metadata=True)
        files = {file.rfilename: file.size or 0 for file in found.siblings or ()}
    if strange := [file for file in files if file not in SHARED and file not in BESIDE]:
        raise ModelError(f"{name}: holds {strange[0]!r:.80}, which is not part of a model: nothing was pulled")
    if ABOUT not in files:
        raise ModelError(f"{name}: is not a model of xmlpreck: it has no {ABOUT}")
    wanted = {file: size for file, size in files.items() if file in SHARED}
    with write_errors(folder, ModelError), atomic_folder(folder, MODEL) as ready:
        _check_room(ready, sum(wanted.values()))
        for file in wanted:
            with _hub_errors(name), _bars(hub, progress):
                downloaded = api.hf_hub_download(name, file, revision=found.sha)
            shutil.copyfile(downloaded, ready / file)
        try:
            open_files(ready, verify=True)
        except InputError as error:
            what = str(error).replace(f"{ready}/", "").replace(str(ready), "it")
            raise ModelError(f"{name}: is not written to {folder}, since it cannot be loaded: {what}") from None
        n_bytes = sum(file.stat().st_size for file in ready.iterdir())
    return Pulled(str(folder), str(found.sha), n_bytes)


def _import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InputError(
            "the Hugging Face Hub needs huggingface_hub, which is not installed: pip install 'xmlpreck[hub]'"
        ) from None
    return huggingface_hub


def _api(hub: Any, token: str | None) -> Any:
    return hub.HfApi(token=token, library_name="xmlpreck", library_version=xmlpreck.__version__)


@contextmanager
def _bars(hub: Any, wanted: bool) -> Iterator[None]:
    """Show the bars of huggingface_hub, or do not."""
    was_off = hub.utils.are_progress_bars_disabled()
    if not wanted:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if not wanted and not was_off:
            hub.utils.enable_progress_bars()


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Say in one line what the Hub refuses, or why it is not reached."""
    errors = _import_hub().errors
    # The errors of its HTTP library, which differs between versions, are bases of its own.
    causes = (*errors.HfHubHTTPError.__bases__, errors.EntryNotFoundError, OSError, ValueError, RuntimeError)
    try:
        yield
    except InputError:
        raise
    except causes as error:
        is_wrapped = isinstance(error, RuntimeError) and error.__cause__ is not None  # in upload threads
        shown = name if name.isprintable() else f"{name!r:.80}"
        raise InputError(f"{shown}: {_explain(error.__cause__ if is_wrapped else error, errors)}") from None


def _explain(error: BaseException | None, errors: Any) -> str:
    """Say what happened and what to do."""
    kinds = {
        errors.HFValidationError: "is not a name on the Hugging Face Hub: give USER/MODEL",
        errors.GatedRepoError: "asks for consent: give it on the model's page, then run `hf auth login`",
        errors.RepositoryNotFoundError: (
            "there is no such model on the Hugging Face Hub, or the token may not read it: check the name, or run "
            "`hf auth login`"
        ),
        errors.RevisionNotFoundError: "has no such revision: give a branch, a tag or a commit of it",
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE forbids the network: unset it",
    }
    for kind, text in kinds.items():
        if isinstance(error, kind):
            return text
    reason = (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
    if isinstance(error, errors.HfHubHTTPError):
        if error.response.status_code in (401, 403):
            return "the token may not do this: use one that may write to this repository"
        return f"the Hugging Face Hub answers: {reason}"
    return f"the Hugging Face Hub cannot be reached: {reason}"


def _without_place(about: dict[str, Any]) -> dict[str, Any]:
    """Leave out where the rows were: paths of the one who trained are nobody else's business."""
    bare = dict(about)
    if isinstance(about.get("data"), dict):
        bare["data"] = {key: value for key, value in about["data"].items() if key != "place"}
    if isinstance(about.get("updates"), list):
        bare["updates"] = [
            {key: value for key, value in entry.items() if key != "place"} if isinstance(entry, dict) else entry
            for entry in about["updates"]
        ]
    return bare


def _card(
    model: Model,
    folder: Path,
    name: str,
    data: DataLocation | str | None,
    n_threads: int,
    note: Note,
    progress: bool,
) -> str:
    location = DataLocation(data, "test") if isinstance(data, str) else data
    if location is None or not location.path:
        return model_card(model, name)
    of_text = model if model.vectorizer is not None else None
    options = EvaluationOptions(n_threads=n_threads)
    found = evaluate(folder, location, options, model=of_text, note=note, progress=progress)
    doubts = [text.removeprefix(f"{folder}: ") for text in found.notes]
    return model_card(model, name, found.scores, f"{location.name} ({location.split})", doubts)


def _check_room(folder: Path, n_bytes: int) -> None:
    """Refuse a model that the disk has no room for, before it is downloaded."""
    if (free := shutil.disk_usage(folder).free) < n_bytes:
        raise OSError(f"the model has {n_bytes:,} bytes, but the disk has room for {free:,}")
