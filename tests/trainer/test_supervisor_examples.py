"""The scripts for Slurm and Kubernetes: what they ask for exists, and they have the form that the two take."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from pydantic import ValidationError

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

NAMED = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def problems(manifest: Any) -> list[str]:
    """What the types of JobSet and Kubernetes, as generated from their OpenAPI, do not take of a manifest."""
    try:
        known = JobsetV1alpha2JobSet.from_dict(manifest)
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    assert known is not None
    return list(unknown(manifest, known.to_dict()))


def unknown(given: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Fields of a manifest that are not kept: the types drop what they do not know."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{where}.{key} is not known"
            else:
                yield from unknown(value, kept[key], f"{where}.{key}")
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{where}[{number}]")
    elif given != kept:
        yield f"{where} is {given!r} and becomes {kept!r}"


@pytest.fixture
def jobset() -> Any:
    return yaml.safe_load(JOBSET.read_text())


def test_the_jobset_has_the_form_that_jobset_takes(jobset: Any) -> None:
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert problems(jobset) == []
    for job in jobset["spec"]["replicatedJobs"]:  # what only the server checks
        pod = job["template"]["spec"]["template"]["spec"]
        assert pod["restartPolicy"] in {"OnFailure", "Never"}  # a Job's pods may not have the default policy
        assert all(container["name"] and container["image"] for container in pod["containers"])


def test_the_check_of_the_form_finds_what_is_wrong(jobset: Any) -> None:
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["backofLimit"] = job.pop("backoffLimit")
    job["template"]["spec"]["containers"][0]["volumeMounts"][0]["path"] = "/x"
    jobset["spec"]["failurePolicy"]["restarts"] = 1
    assert len(problems(jobset)) == 3
    job["completions"] = "many"
    assert problems(jobset) == ["completions: Input should be a valid integer"]


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
