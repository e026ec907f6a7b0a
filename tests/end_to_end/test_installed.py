"""siloflow as a wheel in an environment that knows no checkout, used from a project's folder elsewhere."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WHERE = "import flows, tasks, models, silos; print(*(p.__file__ for p in (flows, tasks, models, silos)), sep='\\n')"
TYPED = """
from importlib.resources import files
print(*(files(name).joinpath("py.typed").is_file() for name in ("flows", "tasks", "models", "silos")))
"""


@dataclass(frozen=True)
class Installed:
    """An environment of its own, and a folder outside of it and of the checkout."""

    bin: Path
    folder: Path
    environment: dict[str, str]

    def type(self, command: str, *arguments: str) -> str:
        """What it prints; it must end well."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            [command, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git has: setuptools leaves a folder where it builds, and takes what lies in an old one."""
    home = tmp_path_factory.mktemp("wheel")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in (name for name in listed if name and not name.startswith("tests/") and (ROOT / name).exists()):
        (home / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, home / "source" / name, follow_symlinks=False)
    pip(home, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(home), str(home / "source"))
    (found,) = home.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Installed:
    """The wheel in a new environment; what it depends on is read where these tests have it, which is gigabytes."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "env")], check=True)
    binaries, folder = home / "env" / "bin", home / "elsewhere"
    folder.mkdir()
    pip(home, "--python", str(binaries / "python"), "install", "--no-deps", str(wheel))
    # a folder that a .pth names is searched, and its own .pth files, one of which names the checkout, are not read
    (site,) = (home / "env").glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    plain = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return Installed(binaries, folder, {**plain, "PATH": f"{binaries}:{os.environ['PATH']}"})


def pip(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_installed_knows_no_checkout_and_says_that_it_is_typed(installed: Installed) -> None:
    found = installed.type("python", "-c", WHERE).split()
    assert all(Path(path).is_relative_to(installed.bin.parent) for path in found), found
    assert installed.type("python", "-c", TYPED).split() == ["True"] * 4


def test_the_version_and_the_methods_are_told_anywhere(installed: Installed) -> None:
    assert installed.type("siloflow", "--version").split()[0] == "siloflow"
    assert "fedavg" in installed.type("siloflow", "methods")


@pytest.mark.parametrize("name", ["reproduce", "bench"])
def test_a_command_of_the_checkout_says_so_elsewhere(name: str, installed: Installed) -> None:
    done = installed.run("siloflow", name, "mcmahan", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"siloflow {name}: got an installed siloflow, expected a checkout, which has its tables and workloads."
    )
    assert name in installed.type("siloflow", "--help")


def test_a_project_of_a_table_is_made_and_what_init_says_to_type_next_is_typed(installed: Installed) -> None:
    rows = [f"{('north', 'south')[at % 2]},{at},{'ill' if at > 120 else 'well'}" for at in range(200)]
    (installed.folder / "visits.csv").write_text("\n".join(["hospital,age,outcome", *rows]), encoding="utf-8")
    *told, following = installed.type("siloflow", "init", "study", "--data", "visits.csv").splitlines()
    made, _, guessed = " ".join(" ".join(told).split()).partition(" guessed ")
    assert made.startswith("made study: params.yaml, prefect.yaml, .gitignore, a git repository, a DVC repository")
    assert "visits.csv is copied there" in made
    assert guessed.startswith("label outcome (by its name), client hospital (by its name); 200 rows")
    typed = following.removeprefix("next     ")
    assert typed == "cd study && siloflow partition && siloflow compare"
    quick = f"{typed} pooled --seeds 0 --set training.rounds=1 --json"
    compared = json.loads(installed.type("bash", "-c", quick).splitlines()[-1])
    assert (compared["failed"], len(compared["runs"])) == ([], 2)
    assert (installed.folder / "study" / compared["runs"][0]["folder"] / "run.json").is_file()
