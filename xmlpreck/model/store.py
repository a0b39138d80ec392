"""Save and load models by path, or by URI in an object store: copied whole, model.json last."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from xmlpreck.config import InputError
from xmlpreck.data.shards import RemoteKind, RemotePath, ShardPath, locate
from xmlpreck.model.directory import FILES, MODEL, Contents, check_target, read_about, read_model, write_model
from xmlpreck.model.seal import ABOUT, MEMO, ModelError

REMOTE_MODEL = RemoteKind(MODEL.noun, ABOUT, FILES.__contains__)


def check_place(place: str | Path) -> None:
    """Refuse to write a model over anything but a model, in a folder or a store."""
    target = locate(place)
    if isinstance(target, RemotePath):
        REMOTE_MODEL.refuse_strangers(target)
    else:
        check_target(target)


def save(place: str | ShardPath, model: Contents) -> int:
    """Write a model directory, or one in a store; returns its size in bytes."""
    target = locate(place)
    if isinstance(target, Path):
        return write_model(target, model)
    REMOTE_MODEL.refuse_strangers(target)
    with TemporaryDirectory(prefix="xmlpreck-") as scratch:
        n_bytes = write_model(Path(scratch) / "model", model)
        REMOTE_MODEL.replace(target, Path(scratch) / "model")
    return n_bytes


def upload(folder: Path, uri: str) -> None:
    """Copy a model directory to a store, in the place of a model that is there; where that fails nothing is lost."""
    target = locate(uri)
    assert isinstance(target, RemotePath)
    try:
        REMOTE_MODEL.replace(target, folder)
    except InputError as error:
        raise ModelError(f"{error}; the model is in {folder}") from None


def load(place: str | Path, verify: bool = False) -> Contents:
    """Read a model directory, or a copy of one in a store, which is always verified."""
    source = locate(place)
    if isinstance(source, Path):
        return read_model(source, verify)
    with _downloaded(source) as folder:
        return read_model(folder, verify=True)


@contextmanager
def _downloaded(source: RemotePath) -> Iterator[Path]:
    """Yield a temporary copy of a model; errors of reading it name the store."""
    if not (source / ABOUT).is_file():
        raise ModelError(f"{source}: is not a model: it has no {ABOUT}: check bucket and folder")
    # Arrays stay mapped when the folder is removed; on Windows, where they cannot, it stays too.
    with TemporaryDirectory(prefix="xmlpreck-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        try:
            (source / ABOUT).get(folder / ABOUT)
            hashes = read_about(folder).get("sha256")
            for name in set(FILES).intersection(hashes if isinstance(hashes, dict) else ()) - {ABOUT, MEMO}:
                (source / name).get(folder / name)
            yield folder
        except InputError as error:
            raise ModelError(str(error).replace(str(folder), str(source))) from None
