"""A flatline task inside TRL's own tool loop (`GRPOTrainer(environment_factory=...)`).

    tokenizer = tokenizer_for_trl(policy.tokenizer)
    GRPOTrainer(
        model=policy.model,
        processing_class=tokenizer,
        reward_funcs=environment_reward,
        environment_factory=environment_factory(task, problems),
        train_dataset=Dataset.from_list(environment_rows(task, problems)),
        ...
    )

What differs from the rollout engine, because TRL decides it: a malformed tool call ends the episode
(the engine tells the model what was wrong with it), an unknown tool is answered by TRL, and text
that holds a number is taken for one where the tool wants one.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flatline.errors import DataError
from flatline.rollout.toolcalls import parse_hermes
from flatline.tasks.base import BadToolCall, Episode, Message, Problem, Task, Tool, ToolCall

PROBLEM_ID = "problem_id"
"""Column of the training data that names the problem."""

_TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float}


class Environment:
    """One episode at a time. TRL shows every public method but `reset` to the model as a tool."""

    # There is no `get_reward`: TRL calls it without the final message, which `environment_reward`
    # is given.

    _task: Task
    _problems: Mapping[str, Problem]

    def __init__(self) -> None:
        self.episode: Episode | None = None
        """What is being played; None before the first `reset`."""

    def reset(self, **row: Any) -> None:
        """Start the episode of a row. The row's own prompt is played as it is."""
        id = row.get(PROBLEM_ID)
        problem = self._problems.get(str(id))
        if problem is None:
            raise DataError(
                f"A training row has {PROBLEM_ID} {id!r}, and none of the {len(self._problems)} "
                f"problems of {self._task.name} has that id.\n"
                "Its tools could not be run and its answer not be scored.\n"
                "Make the rows with `environment_rows` from the problems that the environment gets."
            )
        self.episode = self._task.episode(problem)


def environment_factory(task: Task, problems: Sequence[Problem]) -> type[Environment]:
    """A class of environments with one method per tool of the task; TRL calls it as a factory."""
    members: dict[str, Any] = {tool.name: _method(tool) for tool in task.tools}
    members |= {
        "__doc__": f"One episode of {task.name}.",
        "_task": task,
        "_problems": {problem.id: problem for problem in problems},
    }
    return type("Environment", (Environment,), members)


def environment_rows(task: Task, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Rows of training data, one per problem."""
    return [{"prompt": task.messages(p), PROBLEM_ID: p.id, **_told(p)} for p in problems]


def _told(problem: Problem) -> dict[str, Any]:
    """What the trace of a run says about a problem; the model is shown none of it."""
    told: dict[str, Any] = {"hops": problem.hops, "answer": problem.answer}
    supporting = getattr(problem, "supporting", None)
    return told if supporting is None else {**told, "supporting": sorted(supporting)}


def environment_reward(
    completions: Sequence[Sequence[Message]], environments: Sequence[Environment], **_: Any
) -> list[float]:
    """Reward function for TRL: scores the last message of each completion with its episode."""
    return [
        _reward(completion, environment)
        for completion, environment in zip(completions, environments, strict=True)
    ]


def tokenizer_for_trl(tokenizer: Any) -> Any:
    """A copy of the tokenizer that renders our tools as they are and reads the calls of the model.

    transformers rebuilds a tool's schema from the method's signature and loses its default values
    on the way. TRL also has to be told how to read what a model wrote, unless it knows the chat
    template; templates it does not know are taken for ChatML with Hermes calls.
    """
    ours = copy.copy(tokenizer)
    render = tokenizer.apply_chat_template

    def apply_chat_template(*args: Any, tools: Any = None, **kwargs: Any) -> Any:
        shown = None if tools is None else [_shown(tool) for tool in tools]
        return render(*args, tools=shown, **kwargs)

    ours.apply_chat_template = apply_chat_template
    if getattr(ours, "response_template", None) is None:
        _add_response_template(ours)
    return ours


def final_message(completion: Sequence[Message]) -> str | None:
    """What the model said at last; None where a limit cut it off after a tool call."""
    last = completion[-1] if completion else {"role": "nobody"}
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    thought, said = last.get("reasoning_content"), last.get("content") or ""
    return said if thought is None else f"<think>{thought}</think>\n{said}"


def _reward(completion: Sequence[Message], environment: Environment) -> float:
    episode = environment.episode
    if episode is None:
        raise RuntimeError("an environment is scored that was never reset")
    final = final_message(completion)
    # TRL takes a call that it cannot read for the final message.
    for call in parse_hermes(final or ""):
        if isinstance(call, BadToolCall):
            episode.observe(call)
    return episode.score(final).reward


def _method(tool: Tool) -> Callable[..., str]:
    """What TRL calls when the model calls the tool. It takes whatever the model wrote."""

    def method(self: Environment, /, **arguments: Any) -> str:
        if self.episode is None:
            raise RuntimeError(f"{tool.name} is called in an environment that was never reset")
        return self.episode.observe(ToolCall(name=tool.name, arguments=arguments)).text

    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [_parameter(name, schema) for name, schema in tool.parameters.items()]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = _docstring(tool)
    # A return annotation would put a `return` into the schema.
    method.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    method.__signature__ = inspect.Signature([self, *parameters])  # type: ignore[attr-defined]
    method.tool = tool  # type: ignore[attr-defined]
    return method


def _parameter(name: str, schema: Mapping[str, Any]) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=schema.get("default", inspect.Parameter.empty),
        annotation=_TYPES[schema["type"]],
    )


def _docstring(tool: Tool) -> str:
    lines = [
        f"    {name}: {schema.get('description', name)}" for name, schema in tool.parameters.items()
    ]
    return "\n".join([tool.description, "", "Args:", *lines] if lines else [tool.description])


def _shown(tool: Any) -> Any:
    """The schema of one of our methods; any other tool as it is."""
    ours = getattr(tool, "tool", None)
    return ours.schema() if isinstance(ours, Tool) else tool


def _add_response_template(tokenizer: Any) -> None:
    from trl.chat_template_utils import add_response_schema, qwen3_template  # takes seconds

    try:
        add_response_schema(tokenizer)
    except ValueError:  # TRL does not know the chat template
        # Thinking stays in the content: taken apart, a message loses the order of its tags, and
        # the reward depends on it.
        fields = {k: v for k, v in qwen3_template["fields"].items() if k != "reasoning_content"}
        tokenizer.response_template = {**qwen3_template, "fields": fields}
