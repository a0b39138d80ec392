"""Shared by all tests: the checkout is what is tested, where the real data is, and a Ray cluster."""

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

ROOT = Path(__file__).resolve().parent.parent

# The checkout is tested, here and in the processes that tests start, whatever copy is installed.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell starts what runs in the background with SIGINT ignored, and every process of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

HANG_SECONDS = 1200  # for one test
SHUTDOWN_SECONDS = 120

os.environ.setdefault("XMLPRECK_OFFLINE", "1")  # no test asks the network


# Tests run side by side (pytest-xdist). What shares an expensive fixture stays on one worker: the tests of a file, and
# all that use Ray, of which two clusters would not fit. Pages of the docs share little. The longest come first; while
# Ray's worker compiles the kernels of training, another one has files that do not need them.
RAY = ("tests/test_cluster_training.py", "tests/test_cluster_prediction.py", "[cluster.md]")
LONG = (
    "ray", "tests/test_fetch.py", "tests/test_hostile.py", "tests/test_formats", "[README.md]", "tests/test_faults.py",
    "tests/test_remote.py", "tests/test_cli_pipes.py", "[howto.md]", "[large.md]",
    "tests/test_fuzz.py", "tests/test_prediction.py", "tests/test_report.py", "tests/test_tuning.py",
)  # fmt: skip


def scope_of(nodeid):
    """Name what must be on one worker with this test."""
    if any(part in nodeid for part in RAY):
        return "ray"
    return nodeid if "::test_commands_run_as_written[" in nodeid else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    return ByScope(config, log)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # of xdist; alone, tests run in the order of the files
        scopes = {item: scope_of(item.nodeid) for item in items}
        rank = {item: next((n for n, part in enumerate(LONG) if part in scopes[item]), len(LONG)) for item in items}
        items.sort(key=rank.__getitem__)


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

    from xmlpreck.cluster.session import OWN_RAY

    # A node that is gone refuses every check, and is noticed after some of them. One that is slow, on a machine that is
    # busy, has a minute for each.
    checks = {
        "health_check_period_ms": 250,
        "health_check_failure_threshold": 8,
        "health_check_timeout_ms": 60_000,
    }
    node = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"_system_config": OWN_RAY | checks})
    for _ in range(2):
        cluster.add_node(**node)
    yield cluster
    started = [infos for node in cluster.list_all_nodes() for infos in node.all_processes.values()]
    ending = threading.Thread(target=cluster.shutdown, daemon=True)
    ending.start()
    ending.join(SHUTDOWN_SECONDS)
    for process in (info.process for infos in started for info in infos):
        if process.poll() is None:
            process.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End the whole run, with all tracebacks, where a test or a fixture hangs: nothing interrupts some waits of Ray."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config):
    """All is said: what still waits, in a thread or in Ray, does not keep the process."""
    if "ray" in sys.modules:
        faulthandler.dump_traceback_later(SHUTDOWN_SECONDS, exit=True, file=os.dup(2))
