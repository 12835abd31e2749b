# SPDX-License-Identifier: Apache-2.0
"""harbor-firecracker from PyPI: a second client that nobody here wrote, driven as the Harbor runner drives it.

Harbor itself is not needed: of it the package wants a base class and two records, which stand in here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor_firecracker", reason="harbor-firecracker is not installed")

from server_process import Serving

PARTS = ("harbor", "harbor.environments", "harbor.environments.base", "harbor.environments.capabilities",
         "harbor.models", "harbor.models.task", "harbor.models.task.config")  # fmt: skip


@dataclasses.dataclass
class ExecResult:
    stdout: str
    stderr: str
    return_code: int


class BaseEnvironment:
    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)


@pytest.fixture
def harbor(server: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    """The package, freshly imported beside a stand-in of Harbor, and aimed at the server."""
    for name in [name for name in sys.modules if name.startswith("harbor")]:
        monkeypatch.delitem(sys.modules, name)
    parts = {name: types.ModuleType(name) for name in PARTS}
    parts["harbor.environments.base"].__dict__.update(BaseEnvironment=BaseEnvironment, ExecResult=ExecResult)
    parts["harbor.environments.capabilities"].__dict__.update(
        EnvironmentCapabilities=object, EnvironmentResourceCapabilities=object
    )
    parts["harbor.models.task.config"].__dict__.update(NetworkPolicy=object, TaskOS=enum.Enum("TaskOS", ["LINUX"]))
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)
    for name, value in {
        "HOME": str(tmp_path), "NO_PROXY": "*", "PANDASTACK_API": server.url, "PANDASTACK_API_KEY": server.token,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    import harbor_firecracker
    import pandastack
    from harbor_firecracker import _pandastack as seam

    yield harbor_firecracker
    pandastack.sandbox.get_default_client().session.close()
    seam._reset_default_client_for_tests()
    for name in [name for name in sys.modules if name.startswith("harbor_firecracker")]:
        del sys.modules[name]


def environment(harbor: types.ModuleType, **facts: Any) -> Any:
    config = types.SimpleNamespace(template=None, ttl_seconds=120)
    return harbor.FirecrackerEnvironment(environment_name="task", session_id="trial-1", task_env_config=config, **facts)


def test_a_trial_from_start_to_stop(harbor: types.ModuleType, server: Serving, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "one.txt").write_text("one")
    (source / "deep" / "er" / "two.bin").write_bytes(bytes(range(256)))
    trial = environment(harbor)

    async def run() -> None:
        trial.preflight()
        await trial.start(force_build=False)
        await trial.start(force_build=False)  # no second one
        (live,) = server.live()
        assert live["metadata"] == {"harbor": "firecracker", "environment_name": "task", "session_id": "trial-1"}
        assert live["ttl_seconds"] == 120 and live["template"] == "code-interpreter"
        await trial.attach()
        assert await trial.run_healthcheck()
        result = await trial.exec("sh -c 'echo $NAME; pwd; exit 4'", cwd="/tmp", env={"NAME": "va lue"})
        assert (result.stdout, result.return_code) == ("va lue\n/tmp\n", 4)
        await trial.upload_dir(source, "/home/agent/work")
        assert (await trial.exec("cd ~/work && find . -type f | sort")).stdout == "./deep/er/two.bin\n./one.txt\n"
        await trial.download_dir("/home/agent/work", target)
        await trial.upload_file(source / "one.txt", "/tmp/single")
        await trial.download_file("/tmp/single", tmp_path / "single")
        await trial.prepare_logs_for_host()
        await trial.stop(delete=True)

    asyncio.run(run())
    assert (target / "deep" / "er" / "two.bin").read_bytes() == bytes(range(256))
    assert (tmp_path / "single").read_text() == "one"
    assert server.live() == []


def test_a_command_that_hangs_is_its_timeout_and_the_trial_goes_on(harbor: types.ModuleType, server: Serving) -> None:
    trial = environment(harbor)

    async def run() -> None:
        await trial.start(force_build=False)
        with pytest.raises(harbor.ExecTimeoutError):
            await trial.exec("trap '' TERM; sleep 7301", timeout_sec=1.0)
        assert server.running("7301") == []
        assert (await trial.exec("echo on")).stdout == "on\n"
        await trial.stop(delete=True)

    asyncio.run(run())


def test_stopping_without_deleting_keeps_what_was_written(harbor: types.ModuleType, server: Serving) -> None:
    trial = environment(harbor)

    async def run() -> None:
        await trial.start(force_build=False)
        await trial.exec("echo kept > ~/file")
        await trial.stop(delete=False)
        assert server.live() == []
        trial._sandbox.wake()
        await trial.attach()
        assert (await trial.exec("cat ~/file")).stdout == "kept\n"
        await trial.stop(delete=True)

    asyncio.run(run())
    assert server.live() == []


def test_forks_for_rollouts(harbor: types.ModuleType, server: Serving) -> None:
    def setup(sandbox: Any) -> None:
        sandbox.exec("echo 7 > ~/seed", check=True)

    with harbor.RolloutPool.warm(setup=setup, ttl_seconds=120) as pool:
        rollouts = pool.fork(18, metadata={"run": "1"})  # in two requests: 16 and 2
        assert [each.index for each in rollouts] == list(range(18))
        assert len({each.sandbox.id for each in rollouts}) == 18
        for each in rollouts[::6]:
            assert each.sandbox.exec(f"echo $(($(cat ~/seed) + {each.index}))").stdout == f"{7 + each.index}\n"
        assert len(server.live()) == 19
    assert server.live() == []


def test_refusals_are_its_own_errors(harbor: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = environment(harbor)
    trial.task_env_config.template = "no-such-template"
    with pytest.raises(harbor.ProvisioningError):
        asyncio.run(trial.start(force_build=False))
