"""The environment variables: this is the only module that reads them.

An argument takes precedence over a variable, and a variable over the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from phalanx.errors import UsageError
from phalanx.gpu_models import GPU_MODELS, PLAIN, GpuModel, find_gpu_model

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_GRACE_S = 1.0
MAX_VIRTUAL_DEVICES = 64
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
VIRTUAL_GPUS = "PHALANX_VIRTUAL_GPUS"
VIRTUAL_GPU = "PHALANX_VIRTUAL_GPU"
VIRTUAL_MEMORY = "PHALANX_VIRTUAL_MEMORY"
RACES_MODE = "PHALANX_RACES"
_STAND_IN = "PHALANX_STAND_IN"
_LOOPBACK = "127.0.0.1"
ON_THE_SERVER = "server"  # the name of the world in PHALANX_STORE if its store is on the rendezvous server

Races = Literal["off", "warn", "raise"]
StoodInFor = Literal["nccl", "gloo", "mpi"]
RACES: tuple[Races, ...] = get_args(Races)
STOOD_IN_FOR: tuple[StoodInFor, ...] = get_args(StoodInFor)


@dataclass(frozen=True)
class Settings:
    """Settings that a user may change.

    Attributes:
        timeout_s: How long an operation waits for its peers (PHALANX_TIMEOUT_S).
        grace_s: How long ranks have to end by themselves after one of them has failed (PHALANX_GRACE_S).
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    grace_s: float = DEFAULT_GRACE_S


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        UsageError: A variable does not hold a positive number.
    """
    return Settings(
        timeout_s=_positive(environment, "PHALANX_TIMEOUT_S", DEFAULT_TIMEOUT_S),
        grace_s=_positive(environment, "PHALANX_GRACE_S", DEFAULT_GRACE_S),
    )


def ends_deadlocks(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a proven deadlock ends at once (PHALANX_DEADLOCK=raise, the default) or at its timeout (wait).

    Raises:
        UsageError: The variable has another value.
    """
    text = environment.get("PHALANX_DEADLOCK", "raise")
    if text not in ("raise", "wait"):
        raise UsageError(f'PHALANX_DEADLOCK is "{text}"; give "raise" or "wait"')
    return text == "raise"


def copy_environment(**changes: str) -> dict[str, str]:
    """Return all variables with some changes, for a new process."""
    return {**os.environ, **changes}


def set_environment(**changes: str) -> None:
    """Set variables of this process, for other code that reads them."""
    os.environ.update(changes)


def set_environment_defaults(**defaults: str) -> None:
    """Set variables of this process, unless they are already set."""
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace all variables of this process: a forked rank gets those of its caller."""
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def torch_threads(default: int) -> int:
    """Return how many threads torch uses in a rank: OMP_NUM_THREADS, or the default if that is not set."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else default


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(f'{name} is "{text}"; give a positive number of seconds')
    return value


@dataclass(frozen=True)
class AssignedRank:
    """The rank that a launcher gave to this process.

    Attributes:
        rank: The number of this process.
        size: The number of ranks.
        meeting: A name that all ranks of the job derive from the environment. It may be the same in the next run.
        marks: Variables, as "NAME=value", by which to know the processes between the launcher and this rank, if one
            launcher has started all ranks. The launcher itself has others.
    """

    rank: int
    size: int
    meeting: str
    marks: frozenset[str] = frozenset()


def read_placement(environment: Mapping[str, str] = os.environ, parent: int | None = None) -> AssignedRank | None:
    """Read the variables that torchrun, mpiexec or srun set for this process; return None if there are none.

    Args:
        environment: The variables to read.
        parent: Process id of the launcher's local agent, which differs between two jobs of mpiexec.

    Raises:
        UsageError: The variables contradict each other.
    """
    job = _own_parent() if parent is None else str(parent)
    if "RANK" in environment and "WORLD_SIZE" in environment:
        keys = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        meeting = "torchrun:" + ":".join(environment.get(key, "") for key in keys)
        store = environment.get("PHALANX_STORE")
        if store is not None:  # a program that a rank of phalanx has started; the store is another one in every run
            return _placement(environment, "RANK", "WORLD_SIZE", f"{meeting}:{store}")
        # With several agents, the ranks have no process in common.
        is_one = environment.get("GROUP_WORLD_SIZE") == "1" and "TORCHELASTIC_RUN_ID" in environment
        marks = ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
        return _placement(environment, "RANK", "WORLD_SIZE", meeting, marks if is_one else [])
    if "OMPI_COMM_WORLD_RANK" in environment:
        meeting = f"ompi:{environment.get('PMIX_NAMESPACE', job)}"
        marks = ["OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"] if "PMIX_NAMESPACE" in environment else []
        return _placement(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", meeting, marks)
    if "PMI_RANK" in environment:
        return _placement(environment, "PMI_RANK", "PMI_SIZE", f"pmi:{job}")
    if is_slurm_rank(environment):
        step = f"slurm:{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
        return _placement(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", step)
    if "PMIX_RANK" in environment:
        raise UsageError("the launcher sets PMIX_RANK but not the number of ranks; start with mpirun or mpiexec")
    return None


def is_on_one_host(environment: Mapping[str, str] = os.environ) -> bool | None:
    """Tell whether a launcher says that it has started all ranks of the job on this host; None if it does not say."""
    names = (
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_SIZE", "MPI_LOCALNRANKS"),
    )
    for size, local_size in names:
        if environment.get(size) and environment.get(local_size):
            return environment[size] == environment[local_size]
    if is_slurm_rank(environment) and int_of(environment, "SLURM_STEP_NUM_NODES") > 0:
        return int_of(environment, "SLURM_STEP_NUM_NODES") == 1
    return None


def is_slurm_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether srun has started this process as one of several tasks, and nobody has started ranks below it."""
    is_placed = any(name in environment for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    return not is_placed and "SLURM_PROCID" in environment and int_of(environment, "SLURM_STEP_NUM_TASKS") > 1


def wire(environment: Mapping[str, str] = os.environ) -> Literal["gloo", "mpi"]:
    """Return what moves bytes between hosts (PHALANX_WIRE).

    Raises:
        UsageError: It is something else.
    """
    name = environment.get("PHALANX_WIRE", "gloo")
    if name not in ("gloo", "mpi"):
        raise UsageError(f'PHALANX_WIRE is "{name}"; give gloo or mpi')
    return "mpi" if name == "mpi" else "gloo"


def has_torch_placement(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether RANK or WORLD_SIZE is set, from which torch reads the place of this rank."""
    return "RANK" in environment or "WORLD_SIZE" in environment


def master_address(environment: Mapping[str, str] = os.environ) -> str:
    """Return where torch's store is, as MASTER_ADDR:MASTER_PORT; under srun, by default a port of the first node.

    Raises:
        UsageError: The variables are not set.
    """
    known = {**slurm_master(environment), **environment}
    names = ("MASTER_ADDR", "MASTER_PORT")
    address, port = (known.get(name, "") for name in names)
    if not address or not port:
        missing = " and ".join(name for name in names if not known.get(name))
        also = ", nor does Slurm say it in SLURM_STEP_NODELIST" if is_slurm_rank(environment) else ""
        raise UsageError(
            f"ranks on several hosts need a place to meet; not set: {missing}{also}\n"
            "  do       set MASTER_ADDR and MASTER_PORT, or start the ranks with phalanx run --nnodes or torchrun"
        )
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def slurm_master(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT for ranks that srun has started: the first node, and a port of the step."""
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    if not hosts or not is_slurm_rank(environment):
        return {}
    return {"MASTER_ADDR": first_slurm_host(hosts), "MASTER_PORT": str(_slurm_port(environment))}


def has_agent_store(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether torchrun's agent serves the store at MASTER_ADDR:MASTER_PORT, so that rank 0 does not have to."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def int_of(environment: Mapping[str, str], name: str) -> int:
    """Return a variable that holds a whole number; 0 if it holds none."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def set_placement(rank: int, size: int, port: int, store: str) -> None:
    """Set the variables that torchrun sets for a rank, for code that reads them.

    If this program itself runs under torchrun, remove the variables of that job: its ranks are different ones.

    Args:
        rank: The number of this process.
        size: The number of ranks.
        port: A port number that no other world has; 0 for none.
        store: Where torch's store is, as "name:path".
    """
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_") or name == "MASTER_PORT"]:
        del os.environ[name]
    set_environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    set_environment(**master_variables(port, store))


def master_variables(port: int, store: str) -> dict[str, str]:
    """Return the variables that tell torch where the ranks meet.

    Args:
        port: A port number that no other world has; 0 for none.
        store: Where torch's store is, as "name:path".
    """
    port_text = {"MASTER_PORT": str(port)} if port else {}
    return {"MASTER_ADDR": _LOOPBACK, **port_text, "PHALANX_STORE": f"{_LOOPBACK}:{port or ''}:{store}"}


def private_store(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return where the launcher keeps a store for torch (PHALANX_STORE), as "name:path"; None if there is none.

    If the program has changed MASTER_ADDR or MASTER_PORT, it uses its own store, and this returns None.
    """
    head, _, path = environment.get("PHALANX_STORE", "").rpartition(":")
    before, _, world = head.rpartition(":")
    address, _, port = before.rpartition(":")
    store = f"{world}:{path}" if world else ""
    wanted = (environment.get("MASTER_ADDR", address), environment.get("MASTER_PORT", ""))
    return store if store and wanted == (address, port) else None


def _own_parent() -> str:
    """Return the number of this process's parent and when it began: no later process has both."""
    parent = os.getppid()
    try:
        began = Path(f"/proc/{parent}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):  # in another container
        began = ""
    return f"{parent} {began}"


def _placement(
    environment: Mapping[str, str], rank_name: str, size_name: str, meeting: str, marks: Sequence[str] = ()
) -> AssignedRank:
    try:
        rank, size = int(environment[rank_name]), int(environment[size_name])
    except (KeyError, ValueError):
        rank, size = -1, 0
    if not 0 <= rank < size:
        given = f"{rank_name}={environment.get(rank_name)} {size_name}={environment.get(size_name)}"
        raise UsageError(f"the environment has {given}; the rank must be at least 0 and less than the size")
    own = frozenset(f"{name}={environment[name]}" for name in marks if name in environment)
    return AssignedRank(rank, size, f"{meeting}:{size}", own)


def cache_folder() -> Path:
    """Return the folder for caches (XDG_CACHE_HOME)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "phalanx"


def trace_folder() -> Path | None:
    """Return the folder in which ranks record their operations (PHALANX_TRACE), or None."""
    folder = os.environ.get("PHALANX_TRACE")
    return Path(folder) if folder else None


def set_trace_folder(folder: Path | None) -> None:
    """Let the ranks that this process starts from now on record into a folder; with None, not."""
    if folder is None:
        os.environ.pop("PHALANX_TRACE", None)
    else:
        os.environ["PHALANX_TRACE"] = str(folder)


def terminal_desk() -> str:
    """Return where ranks ask for the terminal (PHALANX_TERMINAL, set by `phalanx run`); empty if they can't."""
    return os.environ.get("PHALANX_TERMINAL", "")


def record_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder that the user has chosen for flight records of failed jobs (PHALANX_RECORD_DIR), or None."""
    given = environment.get("PHALANX_RECORD_DIR")
    return Path(given) if given else None


def full_trace(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether tracebacks also show the calls inside phalanx and torch (PHALANX_FULL_TRACE, unless it is 0)."""
    return environment.get("PHALANX_FULL_TRACE", "").strip() not in ("", "0")


def debugger_command() -> str:
    """Return what the user wants Python's breakpoint() to call (PYTHONBREAKPOINT); empty for the usual debugger."""
    return os.environ.get("PYTHONBREAKPOINT", "")


def compiler_command() -> str:
    """Return the C++ compiler that the user has chosen (CXX), perhaps with arguments; empty if none."""
    return os.environ.get("CXX", "").strip()


def virtual_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many virtual GPUs `import torch` sets up (PHALANX_VIRTUAL_GPUS); 0 for none.

    Raises:
        UsageError: The variable is not a number from 0 to 64.
    """
    text = environment.get(VIRTUAL_GPUS, "").strip()
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or int(text) > MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f'PHALANX_VIRTUAL_GPUS is "{text}"; give a whole number up to {MAX_VIRTUAL_DEVICES}, or 0 for none'
            + ("; PHALANX_VIRTUAL_GPU says what they claim to be" if text.lower() in GPU_MODELS else "")
        )
    return int(text)


def virtual_gpu(environment: Mapping[str, str] = os.environ) -> GpuModel:
    """Return what virtual GPUs claim to be by default (PHALANX_VIRTUAL_GPU).

    Raises:
        UsageError: The variable names no known model.
    """
    return find_gpu_model(environment.get(VIRTUAL_GPU, "").strip() or PLAIN, VIRTUAL_GPU)


def virtual_memory(gpu: GpuModel, environment: Mapping[str, str] = os.environ) -> str:
    """Return the default memory of a virtual device, as text: PHALANX_VIRTUAL_MEMORY, or else that of its model."""
    return environment.get(VIRTUAL_MEMORY, "").strip() or gpu.memory


def races(environment: Mapping[str, str] = os.environ) -> Races:
    """Return the default mode of the race detector (PHALANX_RACES).

    Raises:
        UsageError: The variable has another value.
    """
    text = environment.get(RACES_MODE, "").strip() or "off"
    for choice in RACES:
        if text == choice:
            return choice
    raise UsageError(f'PHALANX_RACES is "{text}"; give one of {", ".join(RACES)}')


def stood_in_for(environment: Mapping[str, str] = os.environ) -> tuple[StoodInFor, ...]:
    """Return the backends that phalanx stands in for after `import torch` (PHALANX_STAND_IN).

    With virtual GPUs the default is "nccl". The value "none" means no backend.

    Raises:
        UsageError: The variable names something else.
    """
    text = environment.get(_STAND_IN, "").strip()
    if not text:
        return ("nccl",) if virtual_gpus(environment) else ()
    if text == "none":
        return ()
    names = {name.strip() for name in text.split(",")}
    unknown = sorted(names.difference(STOOD_IN_FOR))
    if unknown:
        raise UsageError(
            f'PHALANX_STAND_IN is "{text}"; give some of {", ".join(STOOD_IN_FOR)}, separated by commas, or none'
        )
    return tuple(name for name in STOOD_IN_FOR if name in names)


def wants_set_up(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a rank that is forked with torch has to do what `import torch` does with these variables.

    Raises:
        UsageError: One of them has an invalid value.
    """
    is_loaded = environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"
    return virtual_gpus(environment) > 0 or (is_loaded and bool(stood_in_for(environment)))


def environment_without_set_up() -> dict[str, str]:
    """Return all variables but those that let `import torch` set up virtual GPUs or stand-ins."""
    return {name: value for name, value in os.environ.items() if name not in (VIRTUAL_GPUS, _STAND_IN)}


def hides_gpus() -> bool:
    """Tell whether the user hides real GPUs on purpose (CUDA_VISIBLE_DEVICES is set and names none)."""
    return os.environ.get(VISIBLE_GPUS, "all").strip() in ("", "-1")


def gpu_memory(environment: Mapping[str, str] = os.environ) -> str:
    """Return how much memory of a shared GPU each rank may use by default (PHALANX_GPU_MEMORY), as text.

    `phalanx run` and the tests read the user's value; on a rank of `phalanx run` it is the share of that rank.
    """
    return environment.get("PHALANX_GPU_MEMORY", "").strip()


def mps_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of NVIDIA's multi-process service (CUDA_MPS_PIPE_DIRECTORY)."""
    return Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")


def local_rank() -> int:
    """Return the number of the device that this rank uses (LOCAL_RANK); 0 if it is not set."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def allocator_options(environment: Mapping[str, str] = os.environ) -> str:
    """Return the options of torch's GPU allocator (PYTORCH_ALLOC_CONF, or its older name)."""
    return environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def cuda_driver() -> str | None:
    """Return the library to use instead of the machine's CUDA driver (PHALANX_CUDA_DRIVER), or None."""
    return os.environ.get("PHALANX_CUDA_DRIVER") or None


def nvrtc() -> str | None:
    """Return the library to use instead of torch's NVRTC (PHALANX_NVRTC), or None."""
    return os.environ.get("PHALANX_NVRTC") or None


def job_token(environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret that all processes of a job on several hosts share (PHALANX_JOB_TOKEN); "" if there is none."""
    return environment.get("PHALANX_JOB_TOKEN", "").strip()


def job_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of a job on several hosts (PHALANX_JOB_ID, or else the one that torchrun gives its ranks)."""
    return environment.get("PHALANX_JOB_ID") or environment.get("TORCHELASTIC_RUN_ID") or "none"


def job_desk(environment: Mapping[str, str] = os.environ) -> str:
    """Return where the hosts of a job meet (PHALANX_RDZV, set by `phalanx run`), as host:port; "" on one host."""
    return environment.get("PHALANX_RDZV", "")


def job_attempt(environment: Mapping[str, str] = os.environ) -> str:
    """Return how often the ranks of this job were restarted (TORCHELASTIC_RESTART_COUNT), as text."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0")


@dataclass(frozen=True)
class SlurmStep:
    """A step of a Slurm job with one task on each node, of which this process is one.

    Attributes:
        job: The number of the job and the step.
        num_hosts: How many nodes the step has.
        number: The number of this node in it.
        first_host: The name of its first node.
        port: A port that depends on the job and the step.
    """

    job: str
    num_hosts: int
    number: int
    first_host: str
    port: int


def slurm_step(environment: Mapping[str, str] = os.environ) -> SlurmStep | None:
    """Return the step of Slurm in which this launcher is the only task of its node; None if there is none.

    Raises:
        UsageError: The step has several tasks on a node, so that there would be several launchers.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST")
    job, step, nodes, number, hosts = (environment.get(name, "") for name in names)
    tasks = environment.get("SLURM_STEP_NUM_TASKS", nodes)
    if not hosts or not nodes.isdecimal() or not number.isdecimal() or int(nodes) < 2:
        return None
    if tasks != nodes:
        raise UsageError(
            f"this step of Slurm has {tasks} tasks on {nodes} nodes, and phalanx run starts all ranks of a node\n"
            "  do       give srun --ntasks-per-node=1, and phalanx run the number of ranks (-n)"
        )
    return SlurmStep(f"{job}.{step}", int(nodes), int(number), first_slurm_host(hosts), _slurm_port(environment))


def _slurm_port(environment: Mapping[str, str]) -> int:
    """Return a port that steps of a job, and jobs that begin at the same time, hardly share."""
    job = int("".join(filter(str.isdecimal, environment.get("SLURM_JOB_ID", ""))) or "0")
    return 20000 + (job + 97 * int_of(environment, "SLURM_STEP_ID")) % 10000


def first_slurm_host(hosts: str) -> str:
    """Return the first name of Slurm's short form of a list, such as "gpu[03-05,9],login" or "a1,a2"."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", hosts).partition(",")[0]
