"""Shared by all tests: a kernel cache that is never stale, and where the real data is."""

import hashlib
import json
import os
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# numba's cache does not notice every edit, so the kernels' own text names the folder: new text, fresh cache.
# A folder that is set already (CI has a new one for each run) is taken as it is.
_sources = b"".join(path.read_bytes() for path in sorted((ROOT / "xmlpreck" / "kernels").glob("*.py")))
_key = hashlib.sha256(_sources + version("numba").encode() + sys.version.encode()).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"xmlpreck-tests-{os.getuid()}-{_key}"))

os.environ.setdefault("XMLPRECK_OFFLINE", "1")  # no test asks the network


@pytest.fixture(scope="session")
def shared_data():
    """Real data for measurement, which is not part of the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data (real data sets, not shipped)")
    return folder


@pytest.fixture(scope="session")
def ray_cluster():
    """A real Ray cluster of three nodes with two cores each, all on this machine; one for all tests."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'xmlpreck[cluster]'")
    from ray.cluster_utils import Cluster

    # Nodes that are gone are noticed sooner, and no process is started before it has something to do.
    quick = {
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 8,  # fewer, and a busy machine loses nodes that are well
        "prestart_worker_first_driver": False,
        "enable_worker_prestart": False,
    }
    node = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"_system_config": quick})
    for _ in range(2):
        cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


def reseal(folder):
    """Make the sha256 of a changed model true again, as a stranger can."""
    path = folder / "model.json"
    about = json.loads(path.read_text())
    files = [file for file in sorted(folder.iterdir()) if file.name not in ("model.json", "checked.json")]
    about["sha256"] = {file.name: sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    about["sha256"]["model.json"] = sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(about))
