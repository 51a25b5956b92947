"""The Slurm script and the Kubernetes manifest of docs/machines.md.

Both are run with stand-ins: for srun and scontrol, and for the operator, which sets what torchrun
reads from the environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from jobs import BIN, ROOT, curve, finish, run, start
from rehearse import REACHED, Rehearsal

PAGE = (ROOT / "docs/machines.md").read_text(encoding="utf-8")
SBATCH = {
    "job-name": r"\w+", "nodes": r"\d+", "ntasks-per-node": "1", "cpus-per-task": r"\d+",
    "time": r"\d+:\d\d:\d\d", "signal": r"TERM@\d+", "requeue": "", "open-mode": "append",
}  # fmt: skip
POD = {
    "spec": {
        "terminationGracePeriodSeconds": int,
        "containers": [
            {
                "name": str, "image": str, "command": [str], "args": [str],
                "env": [{"name": str, "value": str}],
                "resources": {"limits": {"cpu": str, "memory": str}},
                "volumeMounts": [{"name": str, "mountPath": str}],
            }
        ],
        "volumes": [
            {"name": str, "persistentVolumeClaim": {"claimName": str}, "emptyDir": {"medium": str}}
        ],
    }
}  # fmt: skip
REPLICA = {"replicas": int, "restartPolicy": str, "template": POD}
SCHEMA = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "nprocPerNode": str,
        "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int},
        "pytorchReplicaSpecs": {"Master": REPLICA, "Worker": REPLICA},
    },
}
"""as much of kubeflow.org/v1 as the manifest uses: fields and their types"""
OPTIONAL = {"persistentVolumeClaim", "emptyDir"}


def block(language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]


def fits(value, schema, where: str = "") -> None:
    if isinstance(schema, dict):
        assert set(value) <= set(schema), f"{where}: {set(value) - set(schema)}"
        assert set(schema) - set(value) <= OPTIONAL, f"{where}: {set(schema) - set(value)}"
        for key, each in value.items():
            fits(each, schema[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for each in value:
            fits(each, schema[0], where)
    else:
        assert type(value) is schema, f"{where}: {value!r}"


@pytest.fixture
def cluster(tmp_path):
    """A folder with an srun of two machines that are both this one, and an scontrol."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "scontrol").write_text('#!/bin/sh\n[ "$3" = "a[1-2]" ] && echo localhost\n')
    (programs / "srun").write_text(
        "#!/bin/bash\n"
        "export SLURM_STEP_NODELIST='a[1-2]' SLURM_STEP_NUM_TASKS=2\n"
        "one=0; two=0\n"
        'SLURM_PROCID=0 "$@" & first=$!\n'
        'SLURM_PROCID=1 "$@" & second=$!\n'
        "wait $first || one=$?; wait $second || two=$?; exit $((one + two))\n"
    )
    for each in programs.iterdir():
        each.chmod(0o755)
    return programs


def settings(cluster: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": f"{cluster}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}",
        **{"SLURM_CPUS_PER_TASK": "4", "SLURM_NNODES": "2", "SLURM_JOB_ID": "77"},
        "SLURM_JOB_NODELIST": "a[1-2]",
        **more,
    }


def slurm(tmp_path: Path, **replaced: str) -> Path:
    script = block("slurm")
    for old, new in replaced.items():
        assert re.search(old, script), old
        script = re.sub(old, new, script)
    (tmp_path / "job.sh").write_text(script)
    return tmp_path / "job.sh"


def test_the_slurm_script_asks_for_what_sbatch_knows():
    lines = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", block("slurm"), re.MULTILINE)
    assert len(lines) == block("slurm").count("#SBATCH") == len(SBATCH)
    for name, value in lines:
        assert re.fullmatch(SBATCH[name], value), name


def test_each_machine_is_told_the_same_first_host(cluster, tmp_path):
    """Its own commands, with a torchrun that says what it was given."""
    (cluster / "torchrun").write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $SLURM_PROCID $*"\n')
    (cluster / "torchrun").chmod(0o755)
    result = run("bash", slurm(tmp_path), **settings(cluster, DATA="bin", SAVE="model")).ok()
    said = sorted(result.out.splitlines())
    start = "--nnodes 2 --nproc-per-node 4 --max-restarts 3 --rdzv-backend c10d "
    start += "--rdzv-endpoint localhost:29400 --rdzv-id 77 --no-python fairseq-hybrid-train bin"
    assert [line.startswith(f"1 {i} {start}") for i, line in enumerate(said)] == [True, True]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    made = Rehearsal(tmp_path_factory.mktemp("place"))
    yield made
    made.close()


def test_what_they_start_is_in_order(rehearsal):
    """Parsed by torchrun's parser and fairseq's, and our checks let its work begin."""
    script = block("slurm").replace("\\\n", " ").replace('"', "")
    words = re.search(r"^srun (torchrun .*)$", script, re.MULTILINE)[1]
    for name, value in {"SLURM_NNODES": "2", "WORKERS": "4", "SAVE": "model"}.items():
        words = words.replace(f"${name}", value)
    result = rehearsal(re.sub(r"\$FIRST_HOST|\$(\w+)", r"\1x", words).split())
    assert result.code == REACHED, result.all[-2000:]
    program, *words = container()["command"] + container()["args"]
    machines = ["--nnodes", "2", "--nproc-per-node", manifest()["spec"]["nprocPerNode"]]
    result = rehearsal([program, *machines, *words])
    assert result.code == REACHED, result.all[-2000:]


def manifest() -> dict:
    return yaml.safe_load(block("yaml"))


def container() -> dict:
    spec = manifest()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return spec["containers"][0]


def test_the_manifest_fits_its_schema():
    job = manifest()
    fits(job, SCHEMA)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Worker"]["template"]["spec"]
    assert container()["name"] == "pytorch", "the operator looks for it"
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert job["spec"]["nprocPerNode"].isdecimal()
    threads = next(e["value"] for e in container()["env"] if e["name"] == "OMP_NUM_THREADS")
    cpus = container()["resources"]["limits"]["cpu"]
    assert int(threads) * int(job["spec"]["nprocPerNode"]) == int(cpus)
    assert re.fullmatch(r"[a-z0-9-]+", job["metadata"]["name"])


SMALL = (
    *("--encoder-embed-dim=16", "--encoder-hidden-size=16", "--encoder-layers=2"),
    *("--max-update=2", "--max-tokens=400", "--num-workers=0", "--disable-validation"),
    *("--log-interval=1", "--log-format=json", "--no-save"),
)


@pytest.mark.long
def test_two_machines_of_slurm_train(cluster, data, tmp_path):
    more = r"--save-on-exit " + " ".join(SMALL)
    changed = {
        "WORKERS=4": "WORKERS=1",
        r' --hybrid-stages "\$WORKERS"': "",
        "--share-all-embeddings": "",
        "--save-on-exit": more,
    }
    folders = {"DATA": str(data), "SAVE": str(tmp_path / "model")}
    result = run("bash", slurm(tmp_path, **changed), **settings(cluster, **folders)).ok()
    assert len(curve(result)) == 2


@pytest.mark.long
def test_two_pods_train(data, tmp_path):
    """The operator's environment: PET_ variables, which torchrun takes for its options."""
    given = container()
    dropped = ("--share-all-embeddings", "/shared/bin", "--max-tokens", "--hybrid-stages")
    words = [w for w in given["args"] if not w.startswith(dropped)]
    words = [w.replace("/shared", str(tmp_path)) for w in words]
    command = [*given["command"], str(data), *words, *SMALL]
    pods = [
        start(
            *command, PET_NNODES="2", PET_NPROC_PER_NODE="1", PET_NODE_RANK=str(rank),
            PET_MASTER_ADDR="localhost", PET_MASTER_PORT="29477",
        )
        for rank in range(2)
    ]  # fmt: skip
    results = [finish(pod).ok() for pod in pods]
    assert len(curve(results[0])) == 2
