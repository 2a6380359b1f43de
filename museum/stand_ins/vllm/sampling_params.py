from typing import Any


class SamplingParams:
    def __init__(self, n: int = 1, temperature: float = 1.0, max_tokens: int = 16, **more: Any):
        self.n, self.temperature, self.max_tokens = n, temperature, max_tokens
        vars(self).update(more)


class GuidedDecodingParams: ...


class StructuredOutputsParams: ...
