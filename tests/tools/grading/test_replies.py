"""Replies of a model: their code is found, graded in a process of its own, and rewarded by the environment."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

from packproof.base.errors import PackproofError
from packproof.grading.many.job import GradeOptions
from packproof.grading.replies import code_of, graded_reply, prompt_of
from packproof.grading.tasks.task import task_of
from tests.tools.grading import submissions

TASK = task_of("causal_conv1d-forward-easy")
UNTIMED = GradeOptions("cpu", "s", timed=False)


def reply_with(name: str) -> str:
    source = inspect.getsource(submissions)
    return f"So:\n```python\nno\n```\n\n```python\n{source}\n\nkernel = {name}\n```\nDone."


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("```\na\n```\ntext\n```py\nb\n```", "b\n"),
        ("```python\na = 1\n", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_block_counts(reply: str, code: str | None) -> None:
    assert code_of(reply) == code


def test_the_prompt_has_the_reference_and_the_terms() -> None:
    prompt = prompt_of(TASK)
    assert "`kernel`" in prompt
    assert "Convolve each sequence of a pack" in prompt
    assert '"gradients": false' in prompt


def test_options_of_the_command() -> None:
    assert UNTIMED.arguments == ["--device", "cpu", "--secret", "s", "--untimed", "--isolate"]
    assert GradeOptions(isolate=False).arguments == ["--timed", "--no-isolate"]


def test_a_reply_without_code_has_no_grade_and_one_that_cannot_be_imported_fails() -> None:
    assert asyncio.run(graded_reply(TASK, "no", UNTIMED)) is None
    document = asyncio.run(graded_reply(TASK, "```python\nimport nothing_of_that_name\n```", UNTIMED))
    assert document is not None
    assert document["grade"]["verdict"] == "failed"
    assert "No module named 'nothing_of_that_name'" in document["grade"]["reason"]
    assert document["measured"]["reward"] == 0.0


def test_a_wrong_call_is_no_reward() -> None:
    with pytest.raises(PackproofError, match="no device is called 'tpu'"):
        asyncio.run(graded_reply(TASK, "```python\nkernel = 1\n```", GradeOptions("tpu")))


@pytest.mark.proof
@pytest.mark.parametrize(("name", "reward"), [("right", 0.5), ("leaky", 0.0)])
def test_a_reply_has_the_reward_of_its_code(name: str, reward: float) -> None:
    document = asyncio.run(graded_reply(TASK, reply_with(name), UNTIMED))
    assert document is not None
    assert document["measured"]["reward"] == reward


def test_the_environment_of_verifiers_has_the_tasks_and_their_reward() -> None:
    pytest.importorskip("verifiers.v1")
    from packproof.grading import environment  # noqa: PLC0415  (verifiers is optional)

    config = environment.PackedKernelConfig(device="cpu", secret="s", timed=False)
    taskset = environment.PackedKernelTaskset(environment.PackedKernelSetConfig(level="easy", task=config))
    [task, *_] = [task for task in taskset if task.data.name == TASK.name]
    assert task.data.prompt == prompt_of(TASK)
    [reward] = task.hooks("reward")
    assert asyncio.run(reward(SimpleNamespace(last_reply="no"))) == 0.0
