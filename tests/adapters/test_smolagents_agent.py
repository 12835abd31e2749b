# SPDX-License-Identifier: Apache-2.0
"""A whole smolagents agent, with a model that says what it is told to, on the executor."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole

from deadstop.adapters.smolagents import DeadstopPythonExecutor


class Scripted(Model):
    """Answers with the next code, and keeps what it was shown."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes, self.seen = list(codes), []

    def generate(self, messages: list[Any], **options: Any) -> ChatMessage:
        self.seen.append("\n".join(str(message.content) for message in messages))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on.\n<code>\n{self.codes.pop(0)}\n</code>")


@tool
def shout(text: str) -> str:
    """Makes it loud.

    Args:
        text: what to say
    """
    return text.upper()


def test_an_agent_keeps_its_state_survives_a_hanging_step_and_answers() -> None:
    model = Scripted(
        "word = shout('abc')\nprint(word)",
        "longer = word + '!'\nprint(longer)",
        "print('begun')\nwhile True:\n    sum(range(10**9))",
        "print(longer)",
        "final_answer(shout('end') + str(given))",
    )
    executor = DeadstopPythonExecutor([], timeout_seconds=1, guard=False)
    begun = time.monotonic()
    with CodeAgent(tools=[shout], model=model, executor=executor, max_steps=6, verbosity_level=0) as agent:
        answer = agent.run("say it", additional_args={"given": 7})
    assert answer == "END7"
    assert time.monotonic() - begun < 10
    assert "ABC!" in model.seen[2]
    after = model.seen[3]
    assert "maximum execution time of 1 seconds" in after and "steps are gone: word, longer." in after
    assert r"Execution logs:\nbegun" in after  # the messages are shown as their repr
    assert "`longer` is not defined" in model.seen[4]


def test_a_second_run_of_an_agent_begins_with_what_it_was_given() -> None:
    executor = DeadstopPythonExecutor([], timeout_seconds=5)
    model = Scripted("mine = 1\nfinal_answer(given)", "final_answer(given + mine)")
    with CodeAgent(tools=[], model=model, executor=executor, max_steps=3, verbosity_level=0) as agent:
        assert agent.run("one", additional_args={"given": 1}) == 1
        assert agent.run("two", additional_args={"given": 10}, reset=False) == 11


def test_a_managed_agent_is_refused_by_name_where_it_is_called() -> None:
    helper = CodeAgent(tools=[], model=Scripted(), name="helper", description="helps", verbosity_level=0)
    model = Scripted("helper('do it')", "final_answer('alone')")
    executor = DeadstopPythonExecutor([], timeout_seconds=5)
    with (
        pytest.warns(RuntimeWarning, match="'helper' cannot be used in the worker"),
        CodeAgent(
            tools=[], model=model, managed_agents=[helper], executor=executor, max_steps=3, verbosity_level=0
        ) as agent,
    ):
        assert agent.run("go") == "alone"
    assert "'helper' cannot be used here" in model.seen[1]
