"""A vLLM server as TRL 1.16 speaks to it: HTTP on loopback, a tiny model behind it.

The requests and answers are those of `trl.generation.vllm_client`. Only the road of the tensors is
another one: NCCL needs GPUs, so `joined` hands them over inside the process, and the server takes
them while it answers `/update_weights`, as a vLLM worker does.
"""

import copy
import json
import queue
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from types import SimpleNamespace

import torch
from trl.generation import vllm_client, vllm_generation

CONFIG = {
    "weight_transfer_config": {"backend": "nccl"},
    "model_config": {"logprobs_mode": "processed_logprobs"},
}


class VllmServer:
    """Serves a copy of `model`; `deaf` takes weights and forgets them."""

    def __init__(self, model, *, deaf=False):
        self.model = copy.deepcopy(model).eval()
        self.deaf = deaf
        self.road = queue.Queue()
        """What the trainer broadcasts."""
        self.heard = []
        """Paths of all requests."""
        self._dice = torch.Generator().manual_seed(0)
        self._lock = Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self):
        Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path, asked):
        with self._lock:
            self.heard.append(path)
            name = path.split("?")[0].strip("/").replace("/", "_")
            return getattr(self, name, lambda _: {"success": True})(asked)

    def v1_models(self, _):
        return {"data": [{"id": "tiny"}]}

    def server_info(self, _):
        return {"vllm_config": CONFIG}

    def get_world_size(self, _):
        return {"world_size": 1}

    def update_weights(self, asked):
        names = asked["update_info"]["names"]
        found = dict(self.road.get(timeout=10) for _ in names)
        assert list(found) == names, "announced and broadcast in the same order"
        if not self.deaf:
            state = self.model.state_dict()
            assert set(found) <= set(state), "names are those of the plain model"
            with torch.no_grad():
                for name, value in found.items():
                    state[name].copy_(value)
        return {}

    def v1_completions(self, asked):
        assert asked["return_token_ids"] and asked["return_tokens_as_token_ids"]
        prompts = [prompt for prompt in asked["prompt"] for _ in range(asked["n"])]
        return {"choices": [self._choice(prompt, asked) for prompt in prompts]}

    @torch.no_grad()
    def _choice(self, prompt, asked):
        ids, logprobs = [], []
        stops = self.model.generation_config.eos_token_id
        while len(ids) < asked["max_tokens"] and not (ids and ids[-1] in stops):
            logits_V = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1].float()
            logps_V = (logits_V / asked["temperature"]).log_softmax(-1)
            drawn = int(torch.multinomial(logps_V.exp(), 1, generator=self._dice))
            ids.append(drawn)
            logprobs.append(float(logps_V[drawn]))
        tokens = [f"token_id:{one}" for one in ids]
        told = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": [None] * len(ids)}
        return {"prompt_token_ids": prompt, "token_ids": ids, "logprobs": told}


class _Handler(BaseHTTPRequestHandler):
    owner: VllmServer
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._reply(self.owner.answer(self.path, {}))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply(self.owner.answer(self.path, json.loads(body or b"{}")))

    def _reply(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Tests print nothing."""


@contextmanager
def joined(server, monkeypatch):
    """TRL believes that vLLM is installed, and its broadcast reaches the server."""

    def init_communicator(client, device=0):
        assert client.get_server_info()["weight_transfer_config"] is not None
        size = client.get_world_size() + 1
        url = f"{client.base_url}/init_weight_transfer_engine"
        client._post(url, json={"init_info": {"world_size": size}})

    def send(iterator, trainer_args):
        for name, value in iterator:
            server.road.put((name, value.detach().clone()))

    engine = SimpleNamespace(trainer_send_weights=send)
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", init_communicator)
    monkeypatch.setattr(vllm_client, "NCCLWeightTransferEngine", engine, raising=False)
    monkeypatch.setattr(vllm_client, "NCCLTrainerSendWeightsArgs", SimpleNamespace, raising=False)
    yield server
