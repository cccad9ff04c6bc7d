"""The files in examples/cluster: they parse, and the commands in them exist with their options."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cudt.cli.main import app
from cudt.sweep import definition

EXAMPLES = Path(__file__).parent.parent / "examples" / "cluster"


def check_command(words: list[str]) -> dict[str, Any]:
    """The options of a `cudt` command line, as the command line itself parses them."""
    assert words[0] == "cudt"
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), words[1])  # type: ignore[attr-defined]
    assert command is not None, words
    return command.make_context(words[1], words[2:]).params


def manifests() -> dict[str, dict[str, Any]]:
    """The objects of kubernetes.yaml, by kind and name."""
    found = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def test_the_manifest_has_a_database_a_folder_and_workers():
    assert set(manifests()) == {
        "PersistentVolumeClaim/cudt-postgres",
        "PersistentVolumeClaim/cudt-outputs",
        "Service/cudt-postgres",
        "Deployment/cudt-postgres",
        "Job/cudt-sweep",
    }


def test_the_workers_reach_the_database_of_the_manifest():
    found = manifests()
    database = found["Deployment/cudt-postgres"]["spec"]["template"]
    service = found["Service/cudt-postgres"]
    assert service["spec"]["selector"].items() <= database["metadata"]["labels"].items()
    job = found["Job/cudt-sweep"]["spec"]
    (worker,) = job["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in worker["env"]}
    (server,) = database["spec"]["containers"]
    settings = {one["name"]: one.get("value") for one in server["env"]}
    (port,) = service["spec"]["ports"]
    where = f"{service['metadata']['name']}:{port['port']}/{settings['POSTGRES_DB']}"
    assert env["CUDT_STORAGE"] == f"postgresql://{settings['POSTGRES_USER']}@{where}"
    for container, variable in ((server, "POSTGRES_PASSWORD"), (worker, "PGPASSWORD")):
        (secret,) = (one["valueFrom"] for one in container["env"] if one["name"] == variable)
        assert secret == {"secretKeyRef": {"name": "cudt-postgres", "key": "password"}}


def test_the_job_restarts_what_was_stopped_and_gives_it_time_to_save():
    job = manifests()["Job/cudt-sweep"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    pod = job["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 120
    # Kubernetes accepts a policy for failed pods only with this.
    assert pod["restartPolicy"] == "Never"
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"][1:]}
    assert codes == {"Ignore": [130, 143], "FailIndex": [1, 2]}
    mounted = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    assert mounted == {"cudt-outputs"}


def test_the_workers_command_exists_and_so_does_its_search():
    (worker,) = manifests()["Job/cudt-sweep"]["spec"]["template"]["spec"]["containers"]
    options = check_command(worker["command"])
    assert definition.load(options["search"], None).search.arms
    assert options["out"] == Path(worker["volumeMounts"][0]["mountPath"])


@pytest.mark.parametrize("name", ["workers.sbatch", "postgres.sbatch"])
def test_batch_scripts_are_valid(name):
    script = EXAMPLES / name
    assert script.read_text(encoding="utf-8").startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_batch_script_of_the_workers_runs_a_command_that_exists():
    (line,) = re.findall(r"(cudt sweep .*?) \|\|", (EXAMPLES / "workers.sbatch").read_text(encoding="utf-8"))
    assert check_command(shlex.split(line))["join"]
