"""accord: one communicator for everything a program does across ranks, and compiled engines that run on it.

    import accord, numpy

    with accord.Communicator.from_environment() as comm:
        x = numpy.full(4, comm.rank, dtype=numpy.float32)
        comm.all_reduce(x)

Importing accord imports neither NumPy nor PyTorch. `accord.export`, `accord.compile` and their helpers need PyTorch
and import it on first use.
"""

from typing import TYPE_CHECKING

from accord import plan
from accord._core import (
    Aborted,
    Closed,
    Corrupt,
    Damage,
    Engine,
    EngineContext,
    Error,
    GenerationEvent,
    GenerationQueue,
    GenerationStats,
    GenerationStream,
    InternalError,
    InvalidArgument,
    IoError,
    LanguageModel,
    LoadReport,
    Mismatch,
    NotFound,
    OutputArray,
    PeerLost,
    ResourceExhausted,
    TensorInfo,
    TextEvent,
    TextStream,
    Timeout,
    Unsupported,
    WrongState,
    __version__,
    info,
    inspect,
    verify,
)
from accord._lazy import lazy_names
from accord.communicator import (
    Batch,
    Communicator,
    DeviceWindow,
    ElasticGroup,
    FileStore,
    MemoryStore,
    PrefixStore,
    Prepared,
    Store,
    TcpStore,
    Window,
    WindowArray,
    Work,
)
from accord.tokenizer import ChatFormat, Encoding, StreamingDecoder, Tokenizer

if TYPE_CHECKING:
    from accord.adapters.export import export_adapters
    from accord.checkpoints.export import export_checkpoint
    from accord.engines.comparison import Comparison, compare
    from accord.engines.loading import load
    from accord.engines.program import Program
    from accord.engines.text_generation import GeneratedText, generate
    from accord.exporter.export import export
    from accord.exporter.sentence_encoder import export_encoder
    from accord.gguf.export import export_gguf
    from accord.graph.errors import ExportError, UnsupportedOpError
    from accord.jit.bound_engine import distributed_context, set_groups
    from accord.jit.compiled_graph import compilation_report
    from accord.jit.modules import compile
    from accord.jit.report import CompilationReport
    from accord.package.formats import Fp8, Int4, Int8
    from accord.package.sharding import Column, Expert, Row

__all__ = [
    "Aborted",
    "Batch",
    "ChatFormat",
    "Closed",
    "Column",
    "Communicator",
    "Comparison",
    "CompilationReport",
    "Corrupt",
    "Damage",
    "DeviceWindow",
    "ElasticGroup",
    "Encoding",
    "Engine",
    "EngineContext",
    "Error",
    "Expert",
    "ExportError",
    "FileStore",
    "Fp8",
    "GeneratedText",
    "GenerationEvent",
    "GenerationQueue",
    "GenerationStats",
    "GenerationStream",
    "Int4",
    "Int8",
    "InternalError",
    "InvalidArgument",
    "IoError",
    "LanguageModel",
    "LoadReport",
    "MemoryStore",
    "Mismatch",
    "NotFound",
    "OutputArray",
    "PeerLost",
    "PrefixStore",
    "Prepared",
    "Program",
    "ResourceExhausted",
    "Row",
    "Store",
    "StreamingDecoder",
    "TcpStore",
    "TensorInfo",
    "TextEvent",
    "TextStream",
    "Timeout",
    "Tokenizer",
    "Unsupported",
    "UnsupportedOpError",
    "Window",
    "WindowArray",
    "Work",
    "WrongState",
    "__version__",
    "compare",
    "compilation_report",
    "compile",
    "distributed_context",
    "export",
    "export_adapters",
    "export_checkpoint",
    "export_encoder",
    "export_gguf",
    "generate",
    "info",
    "inspect",
    "load",
    "plan",
    "set_groups",
    "verify",
]

for _public in [value for name, value in globals().items() if name in __all__ and isinstance(value, type)]:
    _public.__module__ = "accord"  # shown in tracebacks and repr()


# The module of each name of the layers above this one. A module is imported when one of its names is first used, and
# imports PyTorch if it needs it.
_ON_FIRST_USE = {
    "Column": "accord.package.sharding",
    "Comparison": "accord.engines.comparison",
    "compare": "accord.engines.comparison",
    "CompilationReport": "accord.jit.report",
    "Expert": "accord.package.sharding",
    "ExportError": "accord.graph.errors",
    "Fp8": "accord.package.formats",
    "GeneratedText": "accord.engines.text_generation",
    "Int4": "accord.package.formats",
    "Int8": "accord.package.formats",
    "Program": "accord.engines.program",
    "Row": "accord.package.sharding",
    "UnsupportedOpError": "accord.graph.errors",
    "compilation_report": "accord.jit.compiled_graph",
    "compile": "accord.jit.modules",
    "distributed_context": "accord.jit.bound_engine",
    "export": "accord.exporter.export",
    "export_adapters": "accord.adapters.export",
    "export_checkpoint": "accord.checkpoints.export",
    "export_encoder": "accord.exporter.sentence_encoder",
    "export_gguf": "accord.gguf.export",
    "generate": "accord.engines.text_generation",
    "load": "accord.engines.loading",
    "set_groups": "accord.jit.bound_engine",
}


__getattr__ = lazy_names("accord", _ON_FIRST_USE)


def __dir__() -> list[str]:
    return __all__
