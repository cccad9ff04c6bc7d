"""`cudt push`: upload a run to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cudt.cli.options import require_folder
from cudt.cli.terminal import make_console

RunFolder = Annotated[Path, typer.Argument(help="Run folder.", show_default=False)]
Repository = Annotated[
    str | None,
    typer.Option("--repo", metavar="OWNER/NAME", help="Name on the hub.", show_default="your name, recipe and run"),
]
Private = Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")]
Branch = Annotated[
    str | None,
    typer.Option("--revision", metavar="BRANCH", help="Branch, created if there is none.", show_default="main"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write the files to hub/OWNER/NAME, and upload nothing.")]


def push(
    run: RunFolder, repo: Repository = None, private: Private = False, revision: Branch = None, dry_run: DryRun = False
) -> None:
    """Upload a finished run to the Hugging Face hub: its model, a card with results and a figure, recipe and tables.

    The model is the one in model/, or an adapter of a run with LoRA. Models that only cudt loads are uploaded as their
    weights. Log in with `hf auth login`, or set HF_TOKEN.
    """
    require_folder(run, "run folder")
    from cudt.integrations import hub_upload
    from cudt.integrations.hub_files import Target, files_of
    from cudt.runs.find import open_run

    opened = open_run(run)
    opened.finished_info()
    user = None if dry_run else hub_upload.logged_in_user()
    target = Target(hub_upload.repository_for(opened, repo, user), revision)
    with opened.locked():
        files = files_of(opened, target)
        console = make_console()
        for name, content in files.items():
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            console.print(f"{size:>12,}  {name}", highlight=False)
        if not opened.info().evaluated:
            console.print("no results under noise: `cudt eval-ood` measures them", highlight=False)
        if dry_run:
            folder = Path("hub", target.repository)
            hub_upload.write(files, folder)
            console.print(f"written to {folder}; nothing is uploaded", soft_wrap=True)
        else:
            message = f"Upload {opened.recipe.name}/{opened.label} with cudt"
            address = hub_upload.upload(files, target, message, private=private)
            console.print(f"uploaded to {address}", soft_wrap=True, highlight=False)
