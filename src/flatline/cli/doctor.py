"""`flatline doctor`: known defects of the releases that are installed."""

import typer


def doctor() -> None:
    """List installed releases with a known silent defect, and the release that fixed it."""
    from flatline.releases import defects_of, installed, libraries

    releases = {name: installed(name) for name in sorted(libraries())}
    present = {name: release for name, release in releases.items() if release}
    if not present:
        typer.echo(f"None of {', '.join(releases)} is installed here, so there is nothing to say.")
        return
    for name, release in present.items():
        known = defects_of(name, release)
        if not known:
            typer.echo(f"{name} {release}: no known defect.")
        for exhibit, one in known.items():
            typer.echo(f"{name} {release}: {one.what}.")
            typer.echo(f"  When: {one.when or 'always'}.")
            typer.echo(f"  Fixed in {one.mended}: pip install '{name}>={one.mended}'")
            typer.echo(f"  Exhibit {exhibit} in docs/museum.md; {one.reference}")
