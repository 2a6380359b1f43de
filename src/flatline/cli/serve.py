"""`flatline serve`: an OpenAI-compatible server for a local model, with exact tokens."""

import sys
from typing import Annotated

import typer

from flatline.cli.evaluate import refuse_missing_device
from flatline.cli.text import visible
from flatline.errors import ConfigError, needing

PORT = 8000


def serve(
    model: Annotated[
        str, typer.Option(help="`lab` (embedded), a folder with safetensors, or a hub name.")
    ] = "lab",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = PORT,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at; any but loopback needs a token, see docs/the-lab.md."
        ),
    ] = "127.0.0.1",
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            "--max-model-len",
            min=2,
            help="Tokens of prompt and answer together; all that the model was built for.",
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Turns sampled at once.")] = 32,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Turns that may wait; more are answered with 429.")
    ] = 256,
    chat_template: Annotated[
        str | None, typer.Option(help="`hermes`, a file, or a template that TRL ships.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the best there is.")] = None,
) -> None:
    """Serve a model to OpenAI clients: chat with tools, token ids, log-probs, streaming.

    Only this machine can reach it unless --host says otherwise. Stop it with Ctrl-C.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype} cannot be served.\nType `--dtype float32` or bfloat16.")
    with needing("A server", "serve"):
        from flatline.loopback import TOKEN_VARIABLE, bind_address, listen

    bind = bind_address(host, port, command=f"flatline serve --model {model}")
    with needing("Sampling from a model", "serve"):
        from flatline.serve.start import guarded_application, start
    from transformers.utils import logging

    logging.disable_progress_bar()
    refuse_missing_device(device)
    served = start(
        model,
        device=device,
        dtype=dtype,
        chat_template=chat_template,
        max_context=max_context,
        max_batch=max_batch,
        max_waiting=max_waiting,
    )
    if bind.warning:
        typer.echo(bind.warning, err=True)
    key = f'os.environ["{TOKEN_VARIABLE}"]' if bind.given else repr(bind.token or "none")
    typer.echo(f"flatline: {visible(model)} at {bind.address}v1 (Ctrl-C stops it)")
    typer.echo(f"  OpenAI(base_url={bind.address + 'v1'!r}, api_key={key})")
    sys.stdout.flush()
    listen(guarded_application(served, bind), bind)
