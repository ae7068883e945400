"""Long work in numbered shards, computed by one process, several processes, or a Ray cluster.

::

    with atomic_folder(path, meta) as folder:
        shards = ShardWriter(folder.parent, rows, rows_per_shard, identity)
        shards.compute(work, workers=2, desc="encoding")    # work(rows) -> {"vecs.f4": array}
        shards.concatenate(folder, ["vecs.f4"])

A shard is a safetensors file with the arrays of a fixed number of rows. A shard that exists is not computed again, so
a repeated call continues work that was interrupted or killed. ``work`` must return the same arrays for the same rows:
then the artifact is equal to the byte, whichever worker computed which shard.

``workers=`` means the same everywhere: a number of processes on this machine, or ``'ray'``, a Ray cluster (the one
that ``ray.init`` has connected to, or else one on this machine). Both run through joblib. ``work`` is sent to each
worker once, and may be defined in a notebook. This process reads the inputs and writes the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import cloudpickle
import numpy as np
import pyterrier as pt
from safetensors.numpy import load_file, save

from pyterrier_graph.storage.artifact import SHARDS, check_identity, write_file

Workers = int | Literal["ray"]
Work = Callable[[Any], Mapping[str, np.ndarray]]

RAY_ROUND = 8  # shards per Ray worker that are computed before their results are stored


class ShardWriter:
    """Computes rows in numbered shards, which stay until the artifact is complete.

    Args:
        workspace: The folder that ``workspace`` provides, or the parent of the one that ``atomic_folder`` provides.
        rows: Number of rows.
        rows_per_shard: Rows per shard (the last shard may have fewer). It must not depend on the number of workers.
        identity: All inputs that the rows depend on, for JSON, such as digests of the encoder and the graph.

    Raises:
        ValueError: If the workspace holds shards of other inputs.
    """

    def __init__(
        self, workspace: Path, rows: int, rows_per_shard: int, identity: Mapping[str, Any]
    ) -> None:
        folder = workspace / SHARDS
        folder.mkdir(exist_ok=True)
        note = folder / "inputs.json"
        inputs = {"rows": rows, "rows_per_shard": rows_per_shard, **identity}
        check_identity(note, inputs, "unfinished work on other inputs", begun=note.exists())
        self._rows: list[range] = []
        self._files: list[Path] = []
        for number, start in enumerate(range(0, rows, rows_per_shard)):
            end = min(start + rows_per_shard, rows)
            self._rows.append(range(start, end))
            self._files.append(folder / f"{number:08d}.safetensors")

    def compute(
        self,
        work: Work,
        *,
        read: Callable[[np.ndarray], Any] = lambda rows: rows,
        workers: Workers = 1,
        **progress: Any,
    ) -> None:
        """Computes the shards that are missing.

        Args:
            work: Computes the arrays of a shard from what ``read`` returns.
            read: Maps ascending row numbers to the input of ``work``, in this process. By default the identity.
            workers: See this module.
            **progress: Arguments of ``pt.tqdm``.
        """
        missing = [number for number, file in enumerate(self._files) if not file.exists()]
        total = sum(map(len, self._rows))
        missing_rows = sum(len(self._rows[number]) for number in missing)
        batches = (np.array(self._rows[number]) for number in missing)
        inputs = zip(missing, map(read, batches), strict=True)
        with pt.tqdm(total=total, initial=total - missing_rows, **progress) as bar:
            for number, arrays in _computed(work, inputs, workers):
                tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
                write_file(self._files[number], save(tensors))
                bar.update(len(self._rows[number]))

    def read(self) -> Iterator[dict[str, np.ndarray]]:
        """The arrays of each shard, in order."""
        return map(load_file, self._files)

    def concatenate(
        self, folder: Path, names: Sequence[str], *, lengths: Sequence[str] = ()
    ) -> None:
        """Writes the arrays of all shards into one file per name, in the order of the rows.

        Args:
            folder: Folder of the files.
            names: Names of arrays, which are the names of the files.
            lengths: Names of further arrays, lengths of rows. Their files contain offsets, int64: where each row
                begins, and the end of the last one.
        """
        row_lengths = {}
        for name in lengths:
            row_lengths[name] = [np.zeros(1)]  # the first row begins at 0
        with ExitStack() as stack:
            files = {}
            for name in names:
                file = open(folder / name, "wb")
                files[name] = stack.enter_context(file)
            for arrays in self.read():
                for name, file in files.items():
                    arrays[name].tofile(file)
                for name in lengths:
                    row_lengths[name].append(arrays[name])
        for name, shard_lengths in row_lengths.items():
            all_lengths = np.concatenate(shard_lengths)
            offsets = all_lengths.cumsum(dtype="<i8")  # (rows + 1,)
            offsets.tofile(folder / name)


def _computed(
    work: Work, inputs: Iterable[tuple[int, Any]], workers: Workers
) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    """Calls ``work`` for each input; yields numbers and results in the order in which they are done."""
    if workers == 1:
        for number, batch in inputs:
            yield number, work(batch)
        return
    import joblib

    # an array, since joblib and Ray store a large array once instead of sending it with each call
    pickled = np.frombuffer(cloudpickle.dumps(work), np.uint8)
    key = uuid4().hex
    call = joblib.delayed(_call)
    calls = (call(pickled, key, number, batch) for number, batch in inputs)
    if workers != "ray":
        parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
        yield from parallel(calls)
        return
    with _ray_backend() as n_jobs, joblib.Parallel(n_jobs=n_jobs) as parallel:
        # Ray's backend returns only lists
        while next_calls := [*islice(calls, RAY_ROUND * n_jobs)]:
            yield from parallel(next_calls)


@contextmanager
def _ray_backend() -> Iterator[int]:
    """Makes Ray joblib's backend; provides the number of workers: one per GPU, or one per CPU if there are none."""
    import joblib
    import ray
    from ray.util.joblib import register_ray

    register_ray()
    if not ray.is_initialized():
        ray.init()
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    cpus = int(resources.get("CPU", 1))
    options = {"num_gpus": 1} if gpus else None  # of each worker
    with joblib.parallel_config("ray", ray_remote_args=options):
        yield gpus or max(1, cpus)


def _call(
    pickled: np.ndarray, key: str, number: int, batch: Any
) -> tuple[int, Mapping[str, np.ndarray]]:
    """Calls the work on an input, in a worker that unpickles it once."""
    if key not in _unpickled:
        _unpickled.clear()
        _unpickled[key] = cloudpickle.loads(pickled)
    return number, _unpickled[key](batch)


_unpickled: dict[str, Work] = {}  # in a worker: the work that it was sent last, by its key
