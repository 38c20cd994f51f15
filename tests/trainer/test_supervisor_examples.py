"""The scripts for Slurm and Kubernetes: what they ask for exists, and they have the form that the two take."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from megascope.cli import build_app

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SBATCH = EXAMPLES / "slurm" / "supervise.sbatch"
JOBSET = EXAMPLES / "kubernetes" / "jobset.yaml"

SBATCH_OPTIONS = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "exclusive", "no-kill", "requeue",
    "open-mode", "output", "signal",
}  # fmt: skip
SRUN_OPTIONS = {"overlap", "no-kill", "kill-on-bad-exit", "output"}
"""Options of sbatch and srun (Slurm's manual pages) that the script may use."""

TEXT, NUMBER, FLAG = {"type": str}, {"type": int}, {"type": bool}
"""Written down from JobSet's v1alpha2 types and Kubernetes' batch/v1 and v1: the part that the manifest uses."""


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": dict, "fields": fields, "required": required.split()}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": list, "item": item}


def one_of(*values: str) -> dict[str, Any]:
    return {"type": str, "values": values}


NAMED = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
QUANTITIES = {"type": dict, "any": TEXT}
SOURCE = record(secretKeyRef=record("name key", name=TEXT, key=TEXT), fieldRef=record("fieldPath", fieldPath=TEXT))
CONTAINER = record(
    "name image",
    name=TEXT,
    image=TEXT,
    command=listed(TEXT),
    args=listed(TEXT),
    env=listed(record("name", name=TEXT, value=TEXT, valueFrom=SOURCE)),
    ports=listed(record("containerPort", containerPort=NUMBER)),
    resources=record(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=listed(record("name mountPath", name=TEXT, mountPath=TEXT)),
)
VOLUME = record(
    "name",
    name=TEXT,
    persistentVolumeClaim=record("claimName", claimName=TEXT),
    emptyDir=record(medium=one_of("Memory")),
)
POD = record(
    "containers restartPolicy",  # a Job's pods may not have the default policy
    containers=listed(CONTAINER),
    volumes=listed(VOLUME),
    restartPolicy=one_of("OnFailure", "Never"),
)
JOB = record(
    "template",
    parallelism=NUMBER,
    completions=NUMBER,
    completionMode=one_of("Indexed", "NonIndexed"),
    backoffLimit=NUMBER,
    template=record("spec", spec=POD),
)
SCHEMA = record(
    "apiVersion kind metadata spec",
    apiVersion=one_of("jobset.x-k8s.io/v1alpha2"),
    kind=one_of("JobSet"),
    metadata=record("name", name=TEXT),
    spec=record(
        "replicatedJobs",
        network=record(enableDNSHostnames=FLAG, subdomain=TEXT),
        successPolicy=record("operator", operator=one_of("All", "Any"), targetReplicatedJobs=listed(TEXT)),
        failurePolicy=record(maxRestarts=NUMBER),
        replicatedJobs=listed(record("name template", name=TEXT, replicas=NUMBER, template=record("spec", spec=JOB))),
    ),
)


def problems(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """What of a manifest the schema does not allow."""
    if type(value) is not schema["type"]:
        return [f"{where}: {value!r} is no {schema['type'].__name__}"]
    if "values" in schema and value not in schema["values"]:
        return [f"{where}: {value!r} is none of {schema['values']}"]
    if schema["type"] is list:
        return [
            text for number, one in enumerate(value) for text in problems(one, schema["item"], f"{where}[{number}]")
        ]
    if "any" in schema:
        return [text for key, one in value.items() for text in problems(one, schema["any"], f"{where}.{key}")]
    if schema["type"] is not dict:
        return []
    found = [f"{where}.{key} is not known" for key in value if key not in schema["fields"]]
    found += [f"{where}.{key} is missing" for key in schema["required"] if key not in value]
    for key, one in value.items():
        found += problems(one, schema["fields"].get(key, {"type": type(one), "fields": {}, "required": []}), key)
    return found


@pytest.fixture
def jobset() -> Any:
    return yaml.safe_load(JOBSET.read_text())


def test_the_jobset_has_the_form_that_jobset_takes(jobset: Any) -> None:
    assert problems(jobset, SCHEMA) == []


def test_the_check_of_the_form_finds_what_is_wrong(jobset: Any) -> None:
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["template"]["spec"]["restartPolicy"] = "Always"
    job["backofLimit"] = job.pop("backoffLimit")
    job["completions"] = "1"
    del jobset["metadata"]["name"]
    assert len(problems(jobset, SCHEMA)) == 4


def test_the_jobs_of_the_jobset_fit_together(jobset: Any) -> None:
    jobs = {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
    assert set(jobset["spec"]["successPolicy"]["targetReplicatedJobs"]) <= set(jobs)
    for name, job in jobs.items():
        pod = job["template"]["spec"]
        assert NAMED.match(name)
        assert job["parallelism"] == job["completions"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    supervisor = options(command_of(jobs["supervisor"]))
    assert jobs["node"]["parallelism"] == int(supervisor["hosts"]) + int(supervisor["spares"])
    port = supervisor["listen"].rpartition(":")[2]
    name, subdomain = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    assert command_of(jobs["node"])[2] == f"{name}-supervisor-0-0.{subdomain}:{port}"


def command_of(job: Any) -> list[str]:
    (container,) = job["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def options(command: list[str]) -> dict[str, str]:
    """Flags with their values."""
    return {word[2:]: command[number + 1] for number, word in enumerate(command[:-1]) if word.startswith("--")}


def flags_of(verb: str) -> set[str]:
    """The flags that a verb takes."""
    arguments = build_app()[verb].assemble_argument_collection()
    return {name.removeprefix("--") for argument in arguments for name in argument.names if name.startswith("--")}


def commands() -> list[list[str]]:
    """All calls of megascope in both scripts."""
    manifest = yaml.safe_load(JOBSET.read_text())
    found = [command_of(job["template"]["spec"]) for job in manifest["spec"]["replicatedJobs"]]
    text = SBATCH.read_text().replace("\\\n", " ")
    return found + [shlex.split(call) for call in re.findall(r"megascope (?:node|supervise) [^&\n]*", text)]


def test_the_scripts_use_flags_that_the_verbs_have() -> None:
    calls = [command for command in commands() if command[0] == "megascope"]
    assert sorted(command[1] for command in calls) == ["node", "node", "supervise", "supervise"]
    for command in calls:
        used = {word.partition("=")[0][2:] for word in command if word.startswith("--")}
        assert used <= flags_of(command[1])


def test_the_slurm_script_is_a_shell_script_with_options_that_slurm_has() -> None:
    assert subprocess.run(["bash", "-n", str(SBATCH)], check=False).returncode == 0
    text = SBATCH.read_text()
    used = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    assert used
    assert set(used) <= SBATCH_OPTIONS
    (srun,) = re.findall(r"^srun (.*)", text, re.MULTILINE)
    assert set(re.findall(r"--([\w-]+)", srun)) <= SRUN_OPTIONS
