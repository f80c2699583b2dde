"""Opens exported models in stock ONNX Runtime, with fanin's ops registered."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import ort_ops
from .._base.local_paths import RemotePathError, refuse_address
from ..onnx_file import ModelFile
from ..ort_ops.custom_libraries import library_paths, register_libraries
from ..ort_ops.dispatch_cost import DispatchCalibration
from . import cuda
from .altered_ops import RENAMED_REMEDY, describe_renamed, renamed_nodes
from .cpus import MAX_THREADS, available_cpus, cpu_quota, default_threads
from .cuda import Provider
from .diagnosis import explain_load_failure, unreadable
from .errors import SessionError
from .model_check import check_model, safe_arguments
from .runtime import load_onnxruntime
from .transient import is_transient

if TYPE_CHECKING:
    import onnxruntime

# Session config entry that tells the op library its number of threads, which it cannot query.
THREADS_KEY = "fanin.threads"

# What it costs to start a run on several threads: see DispatchCost.entry.
DISPATCH_KEY = "fanin.dispatch"

# ONNX Runtime's: "0" lets idle threads of the pool sleep.
SPINNING_KEY = "session.intra_op.allow_spinning"

FORMAT_KEY = "session.load_model_format"  # ONNX Runtime's; by default the file's suffix decides


def open_session(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    providers: Sequence[Provider] | None = None,
    options: onnxruntime.SessionOptions | None = None,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
) -> onnxruntime.InferenceSession:
    """Open an ONNX model with fanin's op library registered.

    Args:
        path: The model file.
        threads: Size of the session's intra-op thread pool, which fanin's kernels share. None
            leaves it to ``options.intra_op_num_threads``. If that is 0 and the process has a CPU
            quota below its number of CPUs (``docker run --cpus``, a Kubernetes limit), the session
            gets one thread for each whole CPU of the quota; otherwise ONNX Runtime chooses the
            size, and the kernels assume the number of CPUs that this process may use.
        providers: Execution providers in order of preference, as names or (name, options) pairs;
            None means the CPU. A provider that is missing or fails to initialize is an error. Only
            ``["CUDAExecutionProvider", "CPUExecutionProvider"]`` falls back to the CPU, with a
            warning that tells why.
        options: Session options of your own, which may be used for several sessions. Modified as
            follows: ``intra_op_num_threads`` is set if ``threads`` is given or a quota decides, the
            config entries ``fanin.threads`` and ``fanin.library`` are set, ``fanin.dispatch`` is
            where ``fanin calibrate`` has measured it on this machine and the options do not have
            it, and the op library is registered unless it already is. Whatever they say, models
            in half precision are opened without the optimizer that crashes on them.
        custom_op_libraries: Paths of other libraries with operators that the model uses, which are
            registered in the options, too. Pass only libraries that you trust: they run code.

    Returns:
        The session.

    Raises:
        SessionError: If the model cannot be opened, or ``options`` contradict ``threads``; the
            message tells what is wrong, where, and what to do next.

    Warns:
        RuntimeWarning: About slow settings: parallel execution, more threads than CPUs or than
            the CPU quota, an unusable calibration, a CUDA session without fanin's CUDA kernels, a
            model whose layers were chosen for another device, or whose ops another tool renamed.

    """
    model = _existing_file(path)
    content = ModelFile() if _is_ort_format(model, options) else check_model(model)
    renamed = renamed_nodes(content)
    if renamed:
        message = f"{model}: {describe_renamed(renamed)}. {RENAMED_REMEDY}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    runtime = load_onnxruntime()
    provider_list = cuda.without_absent_gpu(_checked_providers(runtime, providers, options))
    if options is None:
        options = runtime.SessionOptions()
    _check_output_paths(options)
    _set_threads(runtime, options, threads)
    _set_dispatch(options)
    _register(options)
    _register_others(options, custom_op_libraries)
    try:
        # enable_fallback=0: if a provider fails, the runtime would otherwise print a line and
        # continue on the CPU.
        session = runtime.InferenceSession(
            str(model),
            sess_options=options,
            providers=provider_list,
            enable_fallback=0,
            **safe_arguments(content),
        )
    except Exception as error:  # the runtime's exceptions share no base class
        raise explain_load_failure(model, error) from error
    _check_providers_in_force(session, provider_list, model)
    cuda.warn_without_kernels(session, model)
    cuda.warn_of_other_device(session)
    return session


def _is_ort_format(model: Path, options: Any) -> bool:
    """Return whether ONNX Runtime reads the file as a flatbuffer, which names no data files."""
    requested = None if options is None else _config_entry(options, FORMAT_KEY)
    return requested == "ORT" if requested else model.suffix.lower() == ".ort"


def _existing_file(path: str | os.PathLike[str]) -> Path:
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
        raise SessionError(
            f"a model is opened by its path, not from an object of type {type(path).__name__}",
            "Write it to a file and pass its path; weights are then mapped rather than copied.",
        )
    try:
        refuse_address(path)
    except RemotePathError as error:
        raise SessionError(str(error), "") from None
    model = Path(path)
    denied = SessionError(
        "the file cannot be read (permission denied)",
        "Give this user read permission.",
        model=model,
    )
    try:
        mode = model.stat().st_mode
    except PermissionError:  # of a folder on the path
        raise denied from None
    except (OSError, ValueError) as error:
        if is_transient(error) and isinstance(error, OSError):
            raise unreadable(model, error) from error
        mode = 0
    if stat.S_ISDIR(mode):
        remedy = "Pass the .onnx file itself."
        if os.path.exists(model / "config.toml"):
            remedy = f"This is a run folder: run fanin export {path} -o model.onnx."
        raise SessionError("this is a folder, not a model file", remedy, model=model)
    if not mode:
        raise SessionError(
            "there is no such file",
            f"Check the path (relative paths start at {Path.cwd()}), or create the model with "
            "fanin export.",
            model=model,
        )
    if not stat.S_ISREG(mode):
        raise SessionError(
            "this is not a regular file", "Pass the path of an .onnx file.", model=model
        )
    if not os.access(model, os.R_OK):
        raise denied
    return model


def _checked_providers(
    runtime: Any, providers: Sequence[Provider] | None, options: Any
) -> list[Provider] | None:
    if providers is None:
        # Options may have providers of their own (add_provider_for_devices, onnxruntime >= 1.22).
        carried = options is not None and getattr(options, "has_providers", lambda: False)()
        return None if carried else ["CPUExecutionProvider"]
    if isinstance(providers, str) or not providers:
        raise SessionError(
            f"providers is {providers!r}, not a list of execution providers",
            'Pass a list, for example providers=["CPUExecutionProvider"].',
        )
    available = runtime.get_available_providers()
    providers = list(providers)
    missing = [name for name in map(cuda.provider_name, providers) if name not in available]
    if missing:
        raise SessionError(
            f"onnxruntime {runtime.__version__} has no {', '.join(missing)}; it has "
            f"{', '.join(available)}",
            "Install the wheel that has it (onnxruntime-gpu for CUDA, without onnxruntime beside "
            "it), or ask for an available provider.",
        )
    return providers


def _check_providers_in_force(session: Any, providers: list[Provider] | None, model: Path) -> None:
    in_force = session.get_providers()
    lost = [name for name in map(cuda.provider_name, providers or []) if name not in in_force]
    if not lost:
        return
    problem = f"{', '.join(lost)} failed to initialize"
    remedy = (
        "The runtime's log on stderr says which of the provider's libraries or devices is "
        "missing. Install it, or omit the provider."
    )
    if cuda.is_optional(providers) and lost == [cuda.CUDA]:
        cuda.warn_cpu_instead(f"{problem}: a library it needs is missing or incompatible", remedy)
        return
    raise SessionError(
        f"{problem}; the session would run on {', '.join(in_force)}",
        remedy,
        model=model,
    )


def _check_output_paths(options: Any) -> None:
    """Refuse output folders that ONNX Runtime cannot write to; it notices late or only logs it."""
    wanted = {"optimized_model_filepath": options.optimized_model_filepath}
    if options.enable_profiling:
        wanted["profile_file_prefix"] = options.profile_file_prefix
    for name, value in wanted.items():
        if not value:
            continue
        folder = Path(value).absolute().parent
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            state = "is not writable" if os.path.isdir(folder) else "does not exist"
            raise SessionError(
                f"options.{name} is {value!r}, but the folder {folder} {state}",
                "Choose a file in a folder that this user may write to.",
            )


def _set_threads(runtime: Any, options: Any, threads: int | None) -> None:
    if threads is not None:
        _set_pool(options, threads)
    elif (
        options.intra_op_num_threads == 0
        and _has_own_pool(options)
        and default_threads() < available_cpus()
    ):
        options.intra_op_num_threads = default_threads()
    count = options.intra_op_num_threads or default_threads()
    entry = _config_entry(options, THREADS_KEY)
    if entry is None:
        options.add_session_config_entry(THREADS_KEY, str(count))
    elif entry != str(count):
        raise SessionError(
            f"the options already set {THREADS_KEY} = {entry}, but the session has {count} threads",
            "Use new options for a session with a different number of threads.",
        )
    _warn_of_too_many_threads(count)
    if options.execution_mode != runtime.ExecutionMode.ORT_SEQUENTIAL:
        warnings.warn(
            "options.execution_mode is ORT_PARALLEL, which makes most models slower; "
            "ORT_SEQUENTIAL is the default.",
            RuntimeWarning,
            stacklevel=3,
        )


def _set_pool(options: Any, threads: int) -> None:
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise SessionError(
            f"threads is {threads!r}, not a number of threads",
            "Pass 1 or more, or None for the default.",
        )
    if threads > MAX_THREADS:
        raise SessionError(
            f"threads is {threads}, more than {MAX_THREADS}",
            f"This process may use {available_cpus()} CPUs; pass at most as many.",
        )
    if not _has_own_pool(options):
        raise SessionError(
            f"threads is {threads}, but the options use the process-wide thread pool",
            "Omit threads, or leave options.use_per_session_threads True.",
        )
    if options.intra_op_num_threads not in (0, threads):
        raise SessionError(
            f"threads is {threads}, but options.intra_op_num_threads is "
            f"{options.intra_op_num_threads}",
            "Set only one of them.",
        )
    options.intra_op_num_threads = threads


def _has_own_pool(options: Any) -> bool:
    # Only newer releases can request the process-wide pool from Python.
    return bool(getattr(options, "use_per_session_threads", True))


def _warn_of_too_many_threads(count: int) -> None:
    cpus, usable = available_cpus(), default_threads()
    problem = None
    if count > cpus:
        problem = f"{count} threads on {cpus} CPUs: latency will have long tails"
    elif count > usable:
        problem = (
            f"{count} threads with a CPU quota of {cpu_quota():g}: the system stops all of them "
            "for the rest of a period (typically 100 ms) once they have used it up"
        )
    if problem:
        warnings.warn(f"{problem}; use at most {usable}.", RuntimeWarning, stacklevel=4)


def _set_dispatch(options: Any) -> None:
    """Tell the ops what was measured here of their session's threads, if anything was."""
    threads = _config_entry(options, THREADS_KEY)
    if threads == "1" or not _has_own_pool(options) or _config_entry(options, DISPATCH_KEY):
        return
    try:
        measured = DispatchCalibration.of_this_machine()
    except ValueError as error:
        message = f"the costs of a dispatch are the library's, since {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return
    if measured is not None:
        sleeps = _config_entry(options, SPINNING_KEY) == "0"
        cost = measured.sleeping if sleeps else measured.spinning
        options.add_session_config_entry(DISPATCH_KEY, cost.entry())


def _register(options: Any) -> None:
    try:
        library = str(ort_ops.get_library_path())
    except (OSError, ImportError, RuntimeError) as error:
        raise SessionError(
            f"fanin's op library is missing: {error}", "Install fanin again (pip install fanin)."
        ) from error
    try:
        ort_ops.register(options)
    except Exception as error:  # the runtime's exceptions share no base class
        remedy = "fanin doctor tells what is wrong with the installation."
        if "already" in str(error):
            remedy = "Pass options without the other copy: open_session registers its own."
        raise SessionError(
            f"the op library {library} cannot be registered: {error}", remedy
        ) from error


def _register_others(options: Any, libraries: Sequence[str | os.PathLike[str]]) -> None:
    try:
        register_libraries(options, library_paths(libraries))
    except ValueError as error:
        remedy = "Pass the path of a library that was built for this system and onnxruntime."
        if "already set" in str(error):
            remedy = "Its domain is registered in these options already: name it once."
        raise SessionError(str(error), remedy) from error


def _config_entry(options: Any, key: str) -> str | None:
    try:
        entry: str = options.get_session_config_entry(key)
        return entry
    except RuntimeError:  # ONNX Runtime's way to tell that the key is not set
        return None
