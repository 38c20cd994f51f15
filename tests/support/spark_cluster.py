"""A standalone Spark cluster as a data platform has it: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 120.0

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""None of the six Java processes lives long enough to earn back what the optimising compiler costs."""

DEFAULTS = """spark.executor.memory 512m
spark.driver.memory 512m
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.sql.shuffle.partitions 2
spark.sql.codegen.wholeStage false
spark.ui.enabled false
"""


def environment(folder: Path) -> dict[str, str]:
    """For the cluster's processes and for drivers: small, and on this machine alone."""
    import pyspark

    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS, encoding="utf-8")
    return {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "JDK_JAVA_OPTIONS": SHORT_LIVED,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Start the cluster and wait for both workers; its address. All of it is ended afterwards, executors too."""
    env = environment(folder)
    launcher, port = Path(env["SPARK_HOME"]) / "bin" / "spark-class", _free_port()
    address, package = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    log = folder / "master.log"
    master = [f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = [f"{package}.worker.Worker", address, "-c", "1", "-m", "600m", "--webui-port", "0"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for at, arguments in enumerate((master, worker, worker)):
            with (log if at == 0 else folder / f"worker-{at}.log").open("wb") as output:
                started.append(
                    subprocess.Popen(
                        [str(launcher), *arguments], env=env, stdout=output, stderr=output, start_new_session=True
                    )
                )
        deadline = time.monotonic() + START_S
        while log.read_bytes().count(b"Registering worker") < 2:
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8", errors="replace")[-2000:]
            assert all(one.poll() is None for one in started), "a process of the cluster has ended"
            time.sleep(0.2)
        yield address
    finally:
        for one in reversed(started):
            os.killpg(one.pid, signal.SIGTERM)
        for one in started:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait(20)
