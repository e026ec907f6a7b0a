"""DVC finds no stage of ours in the checkout: `dvc status` speaks of data.dvc only."""

import shutil
from pathlib import Path

import pytest

from silos.versioning.dvc_files import _quiet

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # DVC's import
def test_the_template_of_stages_is_none_of_the_checkout(tmp_path):
    with _quiet():
        from dvc.repo import Repo

        Repo.init(str(tmp_path), no_scm=True).close()
        (tmp_path / "flows" / "init_project").mkdir(parents=True)
        for name in (".dvcignore", "params.yaml", "flows/init_project/dvc.yaml"):
            shutil.copyfile(ROOT / name, tmp_path / name)
        with Repo(str(tmp_path)) as repo:
            assert repo.index.stages == []
            assert repo.status() == {}
        (tmp_path / ".dvcignore").unlink()  # the template has stages
        with Repo(str(tmp_path)) as repo:
            assert [stage.name for stage in repo.index.stages] == ["partition", "compare"]
