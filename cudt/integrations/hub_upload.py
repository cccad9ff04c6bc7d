"""Upload the files of a run to the Hugging Face hub, as one commit, with the token of `hf auth login` or HF_TOKEN."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudt.data import hub
from cudt.data.sources import is_from_library, reason_of
from cudt.integrations.hub_files import Files, Target
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from cudt.utils.shown import shown

_LOG_IN = "run `hf auth login`, or set HF_TOKEN"
_FORBIDDEN = 403
_UNAUTHORISED = 401


def repository_for(run: Run, given: str | None, user: str | None) -> str:
    """The name on the hub: as given, else recipe and run; a name without an owner gets the user's."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = given or f"{run.recipe.name}-{run.label}"
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(
            f"--repo: expected owner/name of letters, digits, '-', '_' and '.', got {shown(name)}"
        ) from None
    return name if user is None or "/" in name else f"{user}/{name}"


def logged_in_user() -> str:
    """The name of the user whose token is used; a UserError without a token, or if the hub does not answer."""
    from huggingface_hub import HfApi, constants, get_token

    if get_token() is None:
        raise UserError(f"not logged in to the hub; {_LOG_IN}")
    if not hub.is_reachable():
        raise UserError(f"the hub ({constants.ENDPOINT}) cannot be reached; --dry-run needs no network")
    with _explained("the hub"):
        return str(HfApi().whoami()["name"])


def upload(files: Files, target: Target, message: str, *, private: bool) -> str:
    """Upload some files as one commit to a repository, which is created if there is none; returns its address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    with _explained(target.repository):
        # None leaves it to the settings of an organisation.
        api.create_repo(target.repository, private=private or None, exist_ok=True)
        if private and not api.model_info(target.repository).private:
            raise UserError(
                f"'{target.repository}' exists and is public; leave out --private, or choose another --repo"
            )
        if target.branch is not None:
            api.create_branch(target.repository, branch=target.branch, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        return str(
            api.create_commit(target.repository, added, commit_message=message, revision=target.branch).commit_url
        )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the hub's errors into one line."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except Exception as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if status == _UNAUTHORISED:
            raise UserError(f"{what}: the hub does not accept your token; {_LOG_IN}") from None
        if status == _FORBIDDEN:
            raise UserError(
                f"{what}: your token may not write there; use one with write access, or another --repo"
            ) from None
        if status is None and not is_from_library(error):
            raise
        raise UserError(f"{what}: the upload failed ({reason_of(error)}); run the same command again") from None


def write(files: Files, folder: Path) -> None:
    """Write the files into a new folder, as they would be uploaded."""
    if folder.exists():
        raise UserError(f"'{folder}' exists; delete it first")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            shutil.copyfile(content, path)
