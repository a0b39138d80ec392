"""Training on hosts with a network of their own: the bits of one machine through delay, loss, a partition and a death.

Takes some minutes on a busy machine, and root: XMLPRECK_HOSTS=1 runs it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT, write_set
from hosts import network

from xmlpreck.data.synthetic import make_dataset

PORT, SECONDS = 6379, 300
# Gone is a host that does not answer ten checks, for each of which it has 5 s.
CHECKS = {"health_check_initial_delay_ms": 5000, "health_check_period_ms": 1000, "health_check_timeout_ms": 5000}
CHECKS |= {"health_check_failure_threshold": 10, "worker_register_timeout_seconds": 600, "worker_niceness": 0}
SETTINGS = ("--no-tune", "--epochs", "3", "--threads", "1", "--set", "train.batch_rows=32")
NODE = ("--disable-usage-stats", "--object-store-memory", "100000000")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that all hosts share, with rows and the arrays of a model that one machine trains on them."""
    if not os.environ.get("XMLPRECK_HOSTS"):
        pytest.skip("starts Ray on three hosts, made as root: XMLPRECK_HOSTS=1 runs it")
    folder = tmp_path_factory.mktemp("hosts")
    write_set(folder / "rows", make_dataset(1280, 300, 400, seed=5), rows_per_shard=400)
    words = ("--data", str(folder / "rows"), "--out", str(folder / "here"), *SETTINGS)
    subprocess.run([sys.executable, "-m", "xmlpreck", "train", *words], check=True, cwd=ROOT, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def cluster(place):
    """A host for the driver and two for label shards; the last one dies in the last test."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'xmlpreck[cluster]'")
    if os.geteuid() or not Path("/dev/net/tun").exists():
        pytest.skip("needs root and /dev/net/tun to make hosts")
    ray = str(Path(sys.executable).with_name("ray"))
    with network(3, place) as (hosts, switch):
        head = ("--head", "--port", str(PORT), "--num-cpus", "0", "--temp-dir", str(place / "ray"))
        head = (*head, "--include-dashboard", "false", "--system-config", json.dumps(CHECKS))
        joins = ("--address", f"{hosts[0].address}:{PORT}", "--num-cpus", "1")
        for host in hosts:
            words = (*(head if host is hosts[0] else joins), "--node-ip-address", host.address, *NODE)
            done = subprocess.run(host.words(ray, "start", *words), capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr
        yield hosts, switch


class Run:
    """A training run whose driver is on the first host."""

    def __init__(self, place, hosts, name):
        self.log, self.model = place / f"{name}.log", place / name
        words = ("--data", str(place / "rows"), "--out", str(self.model), *SETTINGS, "--engine", "ray")
        words = (*words, "--label-shards", "2", "--address", f"{hosts[0].address}:{PORT}")
        command = hosts[0].words(sys.executable, "-m", "xmlpreck", "train", *words)
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)

    def wait_for(self, text):
        deadline = time.monotonic() + SECONDS
        while text not in self.log.read_text() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert text in self.log.read_text(), self.log.read_text()

    def arrays(self):
        """The arrays of the finished model."""
        assert self.process.wait(SECONDS) == 0, self.log.read_text()
        return arrays(self.model)


def arrays(model):
    return {path.name: path.read_bytes() for path in model.glob("*.npy")}


def test_hosts_give_the_bits_of_one_machine(place, cluster):
    hosts, _ = cluster
    run = Run(place, hosts, "peace")
    assert run.arrays() == arrays(place / "here")


def test_delay_loss_and_a_partition(place, cluster):
    hosts, switch = cluster
    switch.set(delay=0.05, loss=0.02)
    run = Run(place, hosts, "trouble")
    run.wait_for("pass 1:")
    switch.set(delay=0.05, loss=0.02, parted=2)
    time.sleep(4)
    assert run.process.poll() is None  # it waits
    switch.set(delay=0.05, loss=0.02)
    assert run.arrays() == arrays(place / "here")
    assert "is lost" not in run.log.read_text()
    switch.set()


def test_the_death_of_a_host(place, cluster):
    hosts, switch = cluster
    switch.set(delay=0.05)  # so that the passes take seconds
    run = Run(place, hosts, "death")
    run.wait_for("pass 1:")
    switch.set()
    hosts[2].die()
    assert run.arrays() == arrays(place / "here")
    assert "is lost" in run.log.read_text()
