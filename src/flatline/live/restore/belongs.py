"""Whose a class, a function or a module is, and what of it may be looked into."""

import functools
import io
import sys
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType
from typing import Any

from flatline.live.where.package import in_library

OPAQUE = (
    "torch._C",
    "torch._dynamo",
    "torch._inductor",
    "torch.autograd",
    "torch.cuda",
    "torch.distributed",
    "torch.fx",
    "torch.jit",
    "torch.profiler",
    "torch.multiprocessing",
    "torch.storage",
    "torch.utils.hooks",
    "deepspeed",
    "tokenizers",
    "pyarrow",
    "pandas",
    "polars",
    "vllm",
    "sglang",
    "logging",
    "threading",
    "_thread",
    "concurrent",
    "asyncio",
    "weakref",
    "_weakref",
    "contextlib",
    "contextvars",
    "ctypes",
    "typing",
    "abc",
    "enum",
    "inspect",
    "importlib",
    "pathlib",
    "datetime",
    "decimal",
    "re",
    "regex",
    "jinja2",
    "tqdm",
    "rich",
    "wandb",
    "mlflow",
    "trackio",
    "tensorboard",
    "tensorboardX",
    "comet_ml",
    "neptune",
    "swanlab",
    "clearml",
    "_pytest",
    "pluggy",
    "pytest",
    "flatline",
)
"""Modules whose objects hold machinery, handles or nothing that changes."""
OF_A_TRAINING = ("flatline.training", "flatline.tasks", "flatline.faults")
"""Parts of flatline that train, and do not look."""
OUTSIDE = {
    "a network client": (
        "requests", "httpx", "httpcore", "aiohttp", "urllib3", "urllib.request", "http.client",
        "socket", "ssl", "websockets", "websocket", "grpc", "openai", "anthropic", "litellm",
        "google.genai", "google.generativeai", "google.cloud", "cohere", "mistralai", "groq",
        "together", "boto3", "botocore", "xmlrpc", "smtplib", "ftplib",
    ),
    "a database": (
        "sqlite3", "psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "mysql", "pymongo",
        "redis", "sqlalchemy", "duckdb", "elasticsearch", "qdrant_client", "chromadb", "lmdb",
        "dbm", "shelve",
    ),
    "another process": ("subprocess", "multiprocessing", "ray", "pexpect", "docker"),
}  # fmt: skip
"""What is not in this process, by the module of its class."""
INHERITS = ("datasets", "torchdata", "functools", "torch.utils.data")
"""Libraries whose objects only hold what the user gave them."""


def within(module: str, names: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or a part of it."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def module_of(thing: Any) -> str:
    """Of a class or a function."""
    found = getattr(thing, "__module__", None)
    return found if isinstance(found, str) else ""


@functools.cache
def is_users(module: str) -> bool:
    """Whether it was written by whoever trains: no library's, and not built in."""
    top = module.partition(".")[0]
    if not module or top in sys.stdlib_module_names - {"__main__"} or top == "flatline":
        return False
    known = sys.modules.get(module)
    file = getattr(known, "__file__", None)
    if file is None:  # neither has a notebook, but what is built in has a specification
        return getattr(known, "__spec__", None) is None
    return not in_library(str(file))


def is_opaque(kind: type) -> bool:
    """Whether nothing of an object of this class is looked into."""
    return _is_machinery(tuple(map(module_of, kind.__mro__)))


@functools.cache
def _is_machinery(modules: tuple[str, ...]) -> bool:
    """By the modules of a class and its bases."""
    ours = within(modules[0], ("flatline",))  # what looks at a training of ours is in its package
    asked = [one for one in modules if within(one, ("flatline",))] if ours else modules[:1]
    return any(within(one, OPAQUE) and not within(one, OF_A_TRAINING) for one in asked)


def outside(module: str) -> str:
    """What objects of a module stand for outside of this process; empty where for nothing."""
    return next((what for what, names in OUTSIDE.items() if within(module, names)), "")


def lost(thing: Any) -> str:
    """Why an object cannot be put back, as the end of "this is ..."; empty where that is not so."""
    kind = type(thing)
    if issubclass(kind, GeneratorType | CoroutineType | AsyncGeneratorType):
        return "a generator, which cannot be turned back"
    if issubclass(kind, io.IOBase):
        return _of_file(thing)
    if outside(module_of(kind)):
        return f"{outside(module_of(kind))}, `{module_of(kind)}.{kind.__name__}`"
    if not is_users(module_of(kind)) and hasattr(kind, "__next__"):
        return f"an iterator, `{kind.__name__}`, which cannot be turned back"
    return ""


def refers_outside(module: ModuleType) -> str:
    """The same of a module that a function of the user's refers to."""
    what = outside(module.__name__)
    return f"`{module.__name__}`: {what}" if what and what != "another process" else ""


def _of_file(file: io.IOBase) -> str:
    if file in (sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__) or file.closed:
        return ""
    if isinstance(file, io.StringIO | io.BytesIO):
        return ""
    return f"an open file, `{getattr(file, 'name', '')}`"
